"""Floods: jobs, names and signals in masses. The worker lives, its memory is bounded, and other jobs end."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from perdure import App, Step, Workflow
from perdure.client.job import Job
from perdure.request.options import NAME_BYTES
from perdure.store.postgres.store import PostgresStore
from tests.attack import flooded
from tests.attack.flooded import FLOOD
from tests.harness.processes import Process
from tests.harness.waiting import until
from tests.worker import fan
from tests.worker.fleet import Fleet

pytestmark = pytest.mark.long

PATIENCE = 120
REASON_BYTES = 2_000
MB = 1 << 20
SLACK = 200 * MB
"""What a worker may need beyond what it needed before the flood. Three jobs write log lines: of each, 1,000 lines of
10 kB wait for the next report while as many are being written, 60 MB. The report is copied as JSON, as bytes and in the
driver's buffer, 90 MB. All lines, or results, would take more than 250 MB if they were kept."""


class Flooded:
    """One worker in a process of its own, and what it holds."""

    def __init__(self, fleet: Fleet, app: App) -> None:
        self.app = app
        self._hand: Process = fleet.start(
            env={"SERVE": "tests.attack.flooded"},
            queues=["default", FLOOD],
            target="tests.attack.flooded:app",
        )
        self.finish_innocents(200)
        self._before = self._peak()

    def finish_innocents(self, n: int = 50) -> None:
        """Jobs outside the flood are done."""
        jobs = self.app.enqueue_many([self.app.tasks["innocent"].job(i) for i in range(n)])
        assert self.result_of(jobs[-1]) == n - 1

    def result_of(self, job: Job[Any]) -> Any:
        return job.get(timeout=PATIENCE)

    def error_of(self, job: Job[Any]) -> str:
        until(lambda: job.refresh().state == "failed", seconds=PATIENCE)
        assert job.error is not None
        return job.error.message

    def check(self, *, slack: int = SLACK) -> None:
        """The worker is alive, does its work, and has not grown."""
        self.finish_innocents()
        assert self._hand.process.poll() is None, self._hand.log
        assert "of this worker ended" not in self._hand.log, self._hand.log
        grown = self._peak() - self._before
        assert grown < slack, f"{grown / MB:.0f} MB more"

    def _peak(self) -> int:
        """The peak memory of the process."""
        status = Path(f"/proc/{self._hand.process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> int:
    """The number of tasks of the app, in every process."""
    monkeypatch.setenv("FLOOD_TASKS", "1000")
    return 1000


@pytest.fixture
def app(url: str) -> Iterator[App]:
    app = flooded.make(url)
    app.migrate()
    yield app
    app.close()


@pytest.fixture
def worker(url: str, tmp_path: Path, app: App) -> Iterator[Flooded]:
    fleet = Fleet(url, tmp_path)
    yield Flooded(fleet, app)
    fleet.close()


def test_a_flood_of_log_lines_and_progress(worker: Flooded) -> None:
    """300 MB of lines, and thousands of reports, from the loop, a thread and processes."""
    n, tasks = 10_000, worker.app.tasks
    jobs: list[Job[Any]] = [tasks["log_lines"].enqueue(n=n, size=10_000) for _ in range(2)]
    jobs += [tasks["log_in_process"].enqueue(n=n, size=10_000)]
    jobs += [tasks[name].enqueue(n=n) for name in ("report_progress", "progress_in_process")]
    worker.finish_innocents()
    for job in jobs:
        assert worker.result_of(job) == n
    worker.check()
    for job in jobs[:3]:
        # A separate line counts the dropped ones.
        assert 0 < sum(entry.what == "log" for entry in worker.app.job_history(job.id)) < n


def test_a_flood_of_huge_and_deep_exceptions(worker: Flooded) -> None:
    tasks = worker.app.tasks
    jobs: list[Job[Any]] = [tasks["raise_large"].enqueue(size=8 * MB) for _ in range(5)]
    jobs += [tasks["raise_chain"].enqueue(length=n) for n in (900, 20_000)]
    jobs += [tasks["raise_groups"].enqueue(depth=depth, width=5_000) for depth in (1, 50, 500)]
    worker.finish_innocents()
    for job in jobs:
        assert len(worker.error_of(job)) <= 2_100
    worker.check()


def test_many_children_of_one_job(worker: Flooded) -> None:
    n = 5_000
    parents = [worker.app.tasks["enqueue_children"].enqueue(n=n) for _ in range(2)]
    for parent in parents:
        assert worker.result_of(parent) == n
    until(lambda: worker.app.count_jobs()["default"].get("succeeded", 0) >= 2 * n, seconds=PATIENCE)
    worker.check()


def test_thousands_of_tasks_queues_and_tenants(tasks: int, worker: Flooded) -> None:
    app = worker.app
    few = [app.tasks[f"one-of-many-{i}"].using(tenant=f"tenant-{i}").job(i) for i in range(tasks)]
    jobs = app.enqueue_many(few)
    # No worker serves these: they must not block others.
    strangers = app.tasks["innocent"]
    app.enqueue_many([strangers.using(queue=f"queue-{i}", tenant=f"t-{i}").job(i) for i in range(3_000)])
    assert [worker.result_of(job) for job in jobs] == [*range(tasks)]
    worker.check()


def test_a_flood_of_cancels_and_notifications(worker: Flooded, url: str) -> None:
    app = worker.app
    waiting = app.tasks["wait_for_cancel"]
    running = waiting.enqueue()
    until(lambda: running.refresh().state == "running")
    queued = app.enqueue_many([waiting.job() for _ in range(2_000)])
    for _ in range(300):
        app.cancel_job(running.id)
    notify(app, url)
    assert app.cancel_jobs(queue=FLOOD).counts
    until(lambda: running.refresh().state == "canceled", seconds=PATIENCE)
    until(lambda: queued[-1].refresh().state == "canceled", seconds=PATIENCE)
    worker.check()


def notify(app: App, url: str) -> None:
    """Notifications that any role may send, some of them not topics of ours."""
    store = app.store
    if not isinstance(store, PostgresStore):
        return
    with psycopg.connect(url, autocommit=True) as connection:
        for payload in ("", "queue/default", "\N{SNOWMAN}" * 2_000, "no/such/topic"):
            text = "SELECT pg_notify(%s, %s || CASE WHEN n %% 2 = 0 THEN '' ELSE n::text END)"
            connection.execute(
                f"{text} FROM generate_series(1, 5000) AS n".encode(), (store.channel, payload)
            )


def test_names_and_messages_at_their_bounds(worker: Flooded) -> None:
    app, longest = worker.app, "\N{SNOWMAN}" * (NAME_BYTES // 3)
    task = app.tasks["innocent"].using(tenant=longest, tags=[f"{longest[:60]}{i}" for i in range(10)])
    jobs = app.enqueue_many([task.job(i) for i in range(500)])
    flow = Workflow(longest, result="end")
    keys = [f"{i:03}{'k' * 500}" for i in range(300)]
    for key in keys:
        flow.step(key, app.tasks["innocent"].job(1))
    flow.step("end", app.tasks["innocent"].job(2), after=keys)
    started = app.start_workflow(flow)
    assert started.get(PATIENCE) == 2
    assert worker.result_of(jobs[-1]) == 499
    for _ in range(200):
        app.cancel_job(jobs[0].id, reason="\N{SNOWMAN}" * (REASON_BYTES // 3))
    worker.check()


@pytest.mark.parametrize(("parents", "size", "joins"), [(5_000, 100, 4), (60, 1_000_000, 5)])
def test_wide_fan_in(worker: Flooded, parents: int, size: int, joins: int) -> None:
    """Read as a whole, the second would take 300 MB."""
    app = worker.app
    flow = Workflow("wide")
    leaves = [flow.step(f"leaf-{i}", app.tasks["leaf"].job(i)) for i in range(parents)]
    for i in range(joins):
        flow.step(f"join-{i}", app.tasks["weigh"].job(), after=leaves)
    started = app.start_workflow(flow)
    fan.settle(app, started, result=lambda _: f'"{"x" * (size - 2)}"')
    worker.finish_innocents()
    started.join(PATIENCE)
    results = [app.get_job(step.id).result for step in started.steps() if step.task == "weigh"]
    assert results == [parents * (size - 2)] * joins
    worker.check()


def test_a_step_that_appends_thousands(worker: Flooded) -> None:
    """From outside, behind a gate: each append is one statement's worth of steps."""
    app = worker.app
    flow = Workflow("growing")
    flow.gate("gate")
    started = app.start_workflow(flow)
    for i in range(10):
        steps = [Step(f"s-{i}-{k}", app.tasks["innocent"].job(k)) for k in range(300)]
        app.append_steps(started.id, window="gate", mutation_key=f"m-{i}", steps=steps)
    app.resolve_gate(started.id, "gate", "succeeded")
    started.join(PATIENCE)
    assert started.status == "succeeded"
    worker.check()
