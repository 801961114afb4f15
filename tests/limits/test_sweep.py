"""Workers are killed, suspended and disturbed; at no instant does a limit let more jobs run than it allows."""

from __future__ import annotations

import random
import signal
from pathlib import Path
from typing import Any

import pytest

from perdure import App
from perdure.model.job import ENDED
from perdure.ops import browse
from perdure.store.store import Store
from tests.harness.processes import Process
from tests.harness.waiting import until
from tests.limits.app import app as theirs
from tests.limits.intervals import intervals, violations

TASKS = ("one", "keyed", "device", "both", "narrow", "both narrow", "free")
KEYS = 8


def test_no_limit_is_exceeded_while_workers_die(url: str, tmp_path: Path) -> None:
    disturb_and_judge(url, tmp_path, jobs=400, workers=3, rounds=1)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_no_limit_is_exceeded_by_20_000_jobs(url: str, tmp_path: Path) -> None:
    disturb_and_judge(url, tmp_path, jobs=20_000, workers=4, rounds=15)


def disturb_and_judge(url: str, directory: Path, *, jobs: int, workers: int, rounds: int) -> None:
    rng = random.Random(7)
    app = App(url, lease=1, synchronous="normal")
    app.migrate()
    fleet = Fleet(url, directory)
    with app:
        try:
            fleet.start(workers)
            until(lambda: len(app.list_workers()) == workers)
            for begun in range(0, jobs, 500):
                requests = [
                    (rng.choice(TASKS), {"key": rng.randrange(KEYS)}) for _ in range(min(500, jobs - begun))
                ]
                enqueue(app, requests)
            for _ in range(rounds):
                plan = [fleet.kill, fleet.suspend, change_limit, cancel_and_requeue, change_limit]
                rng.shuffle(plan)
                for disturb in plan:
                    disturb(rng, app)
            app.set_limit("device", concurrency=9)
            until(lambda: all_ended(app.store), seconds=400)
        finally:
            fleet.remove()
        assert violations(app.store) == []
        assert len(intervals(app.store)) >= jobs * 0.9


class Fleet:
    """Worker processes, started as users start them."""

    def __init__(self, url: str, directory: Path) -> None:
        self._env = {"PERDURE_URL": url}
        self._directory = directory
        self._started = 0
        self._workers: list[Process] = []

    def start(self, n: int) -> None:
        for _ in range(n):
            self._started += 1
            log = self._directory / f"worker {self._started}"
            options = ("--concurrency", "16", "--drain", "1")
            self._workers.append(
                Process("-m", "perdure", "worker", "tests.limits.app:app", *options, log=log, env=self._env)
            )

    def kill(self, rng: random.Random, app: App) -> None:
        victim = self._workers.pop(rng.randrange(len(self._workers)))
        victim.kill()
        self.start(1)

    def suspend(self, rng: random.Random, app: App) -> None:
        """Until others have taken its jobs."""
        victim = rng.choice(self._workers)
        victim.wait_for("tasks")  # before it has registered, nobody would miss it
        victim.suspend(self._env["PERDURE_URL"])
        try:
            until(lambda: not is_known(victim, app))
        finally:
            victim.signal(signal.SIGCONT)

    def remove(self) -> None:
        for worker in self._workers:
            worker.remove()


def is_known(worker: Process, app: App) -> bool:
    """Whether others believe that it is alive. Its name ends with the id of its process."""
    return any(row.name.endswith(f":{worker.pid}") for row in app.list_workers())


def enqueue(app: App, requests: list[tuple[str, dict[str, int]]]) -> None:
    """The requests come from the program of the workers."""
    tasks: Any = theirs.tasks
    app.enqueue_many([tasks[name].job(**values) for name, values in requests])


def change_limit(rng: random.Random, app: App) -> None:
    app.set_limit("device", concurrency=rng.randrange(1, 6))


def cancel_and_requeue(rng: random.Random, app: App) -> None:
    for state in ("running", "ready"):
        for job in app.list_jobs(state=state, limit=10):
            app.cancel_job(job.id)
    for job in app.list_jobs(state="canceled", limit=20):
        app.requeue_job(job.id)


def all_ended(store: Store) -> bool:
    counts = store.perform(browse.count_jobs)
    return all(view in ENDED for views in counts.values() for view in views)
