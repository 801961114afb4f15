"""Many processes on one workflow: the last parents end at the same time, while others act on it."""

from __future__ import annotations

import time

import psycopg

from perdure import App
from perdure.model.graph import OVER
from tests.races.flows import fan_in, finish_one_of_each, meddle, open_app, succeeded, tangle
from tests.races.processes import spawning, starting_line
from tests.races.roles import TASK, hire

PROCESSES, ROUNDS, ACTS = 3, 25, 200


def test_the_last_parents_release_exactly_once(url: str) -> None:
    app, task = open_app(url)
    app.migrate()
    line = starting_line(PROCESSES + 1)
    with spawning() as processes:
        for _ in range(PROCESSES):
            processes.start(finish_one_of_each, url, line, ROUNDS)
        worker = hire(app.operations)
        for _ in range(ROUNDS):
            started = app.start_workflow(fan_in(task, PROCESSES))
            for _ in range(3):
                line.wait()
            jobs = app.operations.claim(worker, tasks=[TASK], n=10)
            assert sorted(job.step_key or "" for job in jobs) == ["end", "tidy"]
            app.operations.finish([succeeded(job) for job in jobs])
            assert started.refresh().status == "succeeded"
        processes.join()
    app.close()


def test_whoever_meddles_waits_for_nobody_for_ever(url: str) -> None:
    app, task = open_app(url)
    app.migrate()
    workflows = [app.start_workflow(tangle(task)).id for _ in range(3)]
    before = deadlocks(url)
    with spawning() as processes:
        for seed in range(PROCESSES):
            processes.start(meddle, url, workflows, ACTS, seed)
        processes.join()
    assert deadlocks(url) == before
    drain(app, workflows)
    for id in workflows:
        states = [step.state for step in app.get_workflow(id).steps()]
        row = app.get_workflow(id).row
        assert {*states} <= {"succeeded", "failed", "canceled"}
        assert (row.waiting, row.active, row.open, row.total) == (0, 0, 0, len(states))
        assert row.spoiled == states.count("failed") + states.count("canceled")
        assert row.status in OVER
    app.close()


def drain(app: App, workflows: list[str]) -> None:
    """Let all that is left come to its end."""
    worker = hire(app.operations)
    for id in workflows:
        if any(step.state == "open" for step in app.get_workflow(id).steps()):
            app.resolve_gate(id, "gate", "succeeded")
    deadline = time.monotonic() + 60
    while any(app.get_workflow(id).status not in OVER for id in workflows):
        assert time.monotonic() < deadline, [app.get_workflow(id).steps() for id in workflows]
        for held in app.list_workers():
            if held.id != worker:
                app.operations.retire(held.id)
        app.operations.rescue()
        jobs = app.operations.claim(worker, tasks=[TASK], n=50)
        app.operations.finish([succeeded(job) for job in jobs])
        for id in workflows:
            if any(step.key == "gate" and step.state == "open" for step in app.get_workflow(id).steps()):
                app.resolve_gate(id, "gate", "succeeded")


def deadlocks(url: str) -> int:
    if url.startswith("sqlite"):
        return 0
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT pg_stat_clear_snapshot()")
        row = connection.execute(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone()
    assert row is not None
    return int(row[0])
