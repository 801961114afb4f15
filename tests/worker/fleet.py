"""Workers in processes of their own: started, signalled, killed; their log and their exit code are read."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import psycopg

from perdure import App
from perdure.client.job import Job
from perdure.model.job import SECOND
from perdure.request.ids import new_id
from tests.harness.processes import Process
from tests.harness.waiting import until
from tests.worker import worker_app


class Fleet:
    """One database, an app on it that enqueues, and workers."""

    def __init__(self, url: str, directory: Path) -> None:
        self.url = url
        self.directory = directory
        self.workers: list[Process] = []

    @cached_property
    def app(self) -> App:
        return worker_app.make(self.url)

    def start(self, *, url: str | None = None, lease: float = 1, env: Any = None, **options: Any) -> Process:
        """A worker that has registered."""
        worker = self.start_only(url=url, lease=lease, env=env, **options)
        worker.wait_for("tasks")
        return worker

    def start_only(
        self, *, url: str | None = None, lease: float = 1, env: Any = None, **options: Any
    ) -> Process:
        surroundings = {"PERDURE_URL": url or self.url, "WORKER_LEASE": str(lease), **(env or {})}
        log = self.directory / f"worker-{len(self.workers)}.log"
        worker = Process("-m", "tests.worker.serve", json.dumps(options), log=log, env=surroundings)
        self.workers.append(worker)
        return worker

    def enqueue(self, task: str, **arguments: Any) -> Job[Any]:
        return self.app.tasks[task].enqueue(**arguments)

    def begin(self, seconds: float) -> Job[Any]:
        """A job of ``rest`` whose handler has begun: a claim alone may still be given back."""
        notes = self.directory / f"notes-{new_id()}"
        job = self.enqueue("rest", seconds=seconds, note_to=str(notes))
        until(notes.exists)
        return job

    def hold(self, task: str = "rest_until") -> tuple[Job[Any], Callable[[], None]]:
        """A job whose handler has begun, and goes on until the function that is returned is called."""
        notes, go_on = (self.directory / f"{what}-{new_id()}" for what in ("notes", "go-on"))
        job = self.enqueue(task, path=str(go_on), note_to=str(notes))
        until(notes.exists)
        return job, go_on.touch

    def state(self, job: Job[Any]) -> str | None:
        return job.refresh().state

    def until_running(self, *jobs: Job[Any]) -> None:
        until(lambda: all(self.state(job) == "running" for job in jobs))

    def until_lease_was_renewed(self, *, lease: float) -> None:
        """Until the only worker is live for longer, from now on, than its present lease lasts."""
        (now,) = self.app.list_workers()

        def renewed() -> bool:
            (worker,) = self.app.list_workers()
            return worker.id == now.id and worker.beat_at >= now.beat_at + lease * SECOND

        until(renewed)

    def close(self) -> None:
        for worker in self.workers:
            worker.remove()
        if "app" in self.__dict__:
            self.app.close()


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    """Rows of a PostgreSQL database."""
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(query.encode()).fetchall()
