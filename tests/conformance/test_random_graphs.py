"""Random graphs on real databases, with random outcomes and lost workers, end as a model of ten lines says."""

from __future__ import annotations

import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure import StartedWorkflow, Workflow
from perdure.model.lifecycle import Failed
from tests.conformance.flow import Flow, outcome
from tests.model.reference import reference

MOST = 200


def random_graph(flow: Flow, rng: random.Random, most: int) -> Workflow:
    built = Workflow("random")
    for i in range(rng.randint(1, most)):
        parents = rng.sample(range(max(0, i - 20), i), min(i, rng.randint(0, 4)))
        needed = [f"s{parent}" for parent in parents if rng.random() < 0.7]
        done = [f"s{parent}" for parent in parents if f"s{parent}" not in needed]
        if rng.random() < 0.1:
            built.gate(f"s{i}", after=needed, after_done=done)
        else:
            built.step(f"s{i}", flow.work.using(max_attempts=50).job(i), after=needed, after_done=done)
    return built


def run(flow: Flow, started: StartedWorkflow, fails: set[str], rng: random.Random) -> None:
    """End ready and open steps, some at a time. Now and then a worker is lost with all its jobs."""
    while True:
        jobs = flow.claim(rng.randint(1, 30))
        if jobs and rng.random() < 0.1:
            flow.world.lose_worker()
            flow.world.advance(3600)
            continue
        ends = [outcome(job, failed=job.step_key in fails) for job in jobs]
        if jobs and rng.random() < 0.1:
            ends[0] = Failed(jobs[0].lease, "error")
        assert flow.world.finish(*ends).refused == []
        flow.world.advance(3600)
        gates = [step.key for step in started.steps() if step.state == "open"]
        for key in rng.sample(gates, min(len(gates), 2)):
            flow.app.resolve_gate(started.id, key, "failed" if key in fails else "succeeded")
        if not jobs and not gates:
            return


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_random_graphs_end_as_the_reference_says(flow: Flow, seed: int) -> None:
    rng = random.Random(seed)
    built = random_graph(flow, rng, MOST)
    shapes = built.shapes()
    fails = {step.key for step in shapes if rng.random() < 0.2}
    started = flow.start(built)
    run(flow, started, fails, rng)
    expected = reference(shapes, fails)
    assert flow.states(started) == expected
    ended_well = all(state == "succeeded" for state in expected.values())
    assert flow.status(started) == ("succeeded" if ended_well else "failed")
