"""A random graph of a thousand steps over three workers, one of which is killed every second."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import pytest

from perdure import App, Workflow
from perdure.client.task import AsyncTask
from perdure.model.graph import OVER
from perdure.ops.workflow import get_graph
from tests.harness.processes import Process
from tests.races import flow_app

STEPS, WORKERS = 1_000, 3
PATIENCE = 600.0


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_step_ends_once_and_starts_after_its_parents(url: str, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    environment = {"PERDURE_URL": url, "FLOW_NOTES": str(notes)}

    def start() -> Process:
        return Process("-m", "tests.races.flow_app", log=tmp_path / "log", env=environment)

    app = App(url)
    app.migrate()
    task = app.task(name="step", max_attempts=100, backoff=0.01, max_crashes=None)(flow_app.step.function)
    started = app.start_workflow(graph(task))
    workers = [start() for _ in range(WORKERS)]
    rng, deadline = random.Random(1), time.monotonic() + PATIENCE
    killed = 0
    try:
        while started.refresh().status not in OVER:
            assert time.monotonic() < deadline
            time.sleep(1)
            victim = workers.pop(rng.randrange(len(workers)))
            victim.kill()
            killed += 1
            workers.append(start())
    finally:
        for worker in workers:
            worker.remove()
    assert started.status == "succeeded"
    assert killed >= 3
    verify(app, started.id, notes)
    app.close()


def graph(task: AsyncTask[..., str]) -> Workflow:
    flow, rng = Workflow("thousand"), random.Random(7)
    for i in range(STEPS):
        parents = rng.sample(range(max(0, i - 60), i), min(i, rng.randint(0, 3)))
        needed = [f"s{parent}" for parent in parents if rng.random() < 0.7]
        done = [f"s{parent}" for parent in parents if f"s{parent}" not in needed]
        flow.step(f"s{i}", task.job(f"s{i}"), after=needed, after_done=done)
    return flow


def verify(app: App, id: str, notes: Path) -> None:
    whole = app.store.perform(get_graph, id)
    assert whole is not None
    steps = {step.id: step for step in whole.steps}
    assert [step.state for step in whole.steps] == ["succeeded"] * STEPS
    parents = Counter(steps[child].key for _, child, _ in whole.edges)
    for parent, child, _ in whole.edges:
        ended, begun = steps[parent].finished_at, steps[child].started_at
        assert ended is not None
        assert begun is not None
        assert ended <= begun
    # Every start, also of attempts that were lost, saw all its parents ended; the last of them was recorded.
    starts = Counter[str]()
    for line in notes.read_text().splitlines():
        key, _, saw = line.split()
        starts[key] += 1
        assert int(saw) == parents[key]
    assert starts.keys() == {step.key for step in whole.steps}
    for step in whole.steps:
        assert sum(entry.what == "succeeded" for entry in app.job_history(step.id)) == 1
