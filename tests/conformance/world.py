"""A store with a clock that the test moves, a worker that claims, and a listener for wake-ups."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

import psycopg

from perdure.app import App
from perdure.client.job import Job
from perdure.client.task import SyncTask
from perdure.model.job import SECOND, Claimed, JobRow
from perdure.model.lifecycle import Outcome
from perdure.ops import browse
from perdure.ops.browse import AttemptRow, EventRow, LogRow, Traces
from perdure.ops.finish import Finished
from perdure.store.statements import render
from perdure.store.store import open_store
from perdure.worker.claimer import Batch
from perdure.worker.operations import Queues, WorkerOperations

NOON = 1_800_000_000 * SECOND
"""When every world begins: far from the host's clock, so that a use of that one is noticed."""
LEASE = 30 * SECOND

POISON = "poison"
"""The tenant of jobs whose rows refuse to leave the state ``running``, once ``World.poison`` was called."""


def work(n: int = 0, *, note: str = "") -> int:
    return n


class World:
    """One database, one app on it, and one registered worker."""

    def __init__(self, url: str, **options: Any) -> None:
        self.url = url
        self.now = NOON
        self.store = open_store(url, synchronous="normal", clock=lambda: self.now)
        self.app = App(url, **options)
        self.app._store = self.store
        self.operations = WorkerOperations(self.store, rng=random.Random(7))
        self.woken: list[frozenset[str]] = []
        self.store.subscribe(self.woken.append)
        self.workers = 0
        self.worker = self.new_worker()

    def close(self) -> None:
        self.app.close()

    def advance(self, seconds: float) -> None:
        self.now += round(seconds * SECOND)

    def task(self, name: str = "work", **options: Any) -> SyncTask[..., int]:
        """A task of ``(n: int = 0, *, note: str = "")`` that returns n."""
        return self.app.task(name=name, **options)(work)

    def producer(self) -> App:
        """A program on the same database without tasks."""
        app = App(self.url)
        app._store = self.store
        return app

    def claim(self, n: int = 1, *, queues: Queues = None, polls: bool = False) -> Batch:
        """Claim as a worker that knows every task of the app, and heard of the last change of limits."""
        self.operations.limits_may_have_changed()
        return self.operations.claim(
            self.worker, tasks=sorted(self.app.tasks), n=n, queues=queues, polls=polls
        )

    def claim_one(self) -> Claimed:
        (job,) = self.claim()
        return job

    def finish(self, *outcomes: Outcome) -> Finished:
        return self.operations.finish(outcomes)

    def attempt(self, end: Callable[..., Outcome], *args: Any, **options: Any) -> Claimed:
        """Claim one job and end its attempt with this outcome, which must be accepted."""
        job = self.claim_one()
        assert self.finish(end(job.lease, *args, **options)).refused == []
        return job

    def new_worker(self, *, lease: int = LEASE) -> str:
        """Register a new worker, which makes the next claims."""
        self.workers += 1
        self.worker = f"worker-{self.workers}"
        self.operations.register(self.worker, name="one", lease=lease)
        return self.worker

    def lose_worker(self) -> list[str]:
        """The worker falls silent for as long as its lease lasts, and another takes its place.

        Returns the jobs that were rescued.
        """
        self.advance(LEASE / SECOND)
        rescued = self.rescue()
        self.new_worker()
        return rescued

    def rescue(self, *, page: int = 500) -> list[str]:
        """Sweep; return the jobs that were rescued."""
        return [change.id for change in self.operations.rescue(page=page)]

    def row(self, job: Job[Any] | Claimed | str) -> JobRow:
        row = self.store.perform(browse.get_job, _id(job))
        assert row is not None
        return row

    def attempts(self, job: Job[Any] | Claimed | str) -> list[AttemptRow]:
        return self._traces(job).attempts

    def events(self, job: Job[Any] | Claimed | str) -> list[EventRow]:
        return self._traces(job).events

    def logs(self, job: Job[Any] | Claimed | str) -> list[LogRow]:
        return self._traces(job).logs

    def count(self, table: str) -> int:
        number: int = self.sql(f"SELECT count(*) FROM perdure.{table}")[0][0]
        return number

    def listen(self) -> list[frozenset[str]]:
        """Records wake-ups from here on: one entry for each commit that wakes anybody."""
        self.woken.clear()
        return self.woken

    def sql(self, text: str, **params: object) -> list[tuple[Any, ...]]:
        """Run SQL on a separate connection, for what no method does."""
        if self.store.dialect == "postgres":
            with psycopg.connect(self.url, autocommit=True) as connection:
                cursor = connection.execute(render(text, "postgres").encode(), params or None)
                return cursor.fetchall() if cursor.description else []
        connection_ = sqlite3.connect(self.url.removeprefix("sqlite:///"), isolation_level=None, timeout=10)
        try:
            return connection_.execute(render(text, "sqlite"), params).fetchall()
        finally:
            connection_.close()

    def sql_each(self, text: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Run SQL with each of these parameters, on one separate connection."""
        if self.store.dialect == "postgres":
            with psycopg.connect(self.url) as connection:
                connection.cursor().executemany(render(text, "postgres").encode(), rows)
            return
        with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=10)) as connection_:
            connection_.executemany(render(text, "sqlite"), rows)
            connection_.commit()

    def poison(self, sqlstate: str = "P0001") -> None:
        """From here on no running job of the tenant ``POISON`` can be written."""
        if self.store.dialect == "postgres":
            self.sql(
                f"CREATE FUNCTION perdure.refuse() RETURNS trigger LANGUAGE plpgsql AS "
                f"$$ BEGIN RAISE 'poison' USING ERRCODE = '{sqlstate}'; END $$; "
                f"CREATE TRIGGER refuse BEFORE UPDATE ON perdure.job FOR EACH ROW "
                f"WHEN (OLD.tenant = '{POISON}' AND OLD.state = 'running') EXECUTE FUNCTION perdure.refuse()"
            )
        else:
            self.sql(
                f"CREATE TRIGGER refuse BEFORE UPDATE ON perdure.job "
                f"WHEN OLD.tenant = '{POISON}' AND OLD.state = 'running' "
                f"BEGIN SELECT RAISE(ABORT, 'poison'); END"
            )

    def cure(self) -> None:
        """The rows can be written again."""
        postgres = self.store.dialect == "postgres"
        self.sql("DROP FUNCTION perdure.refuse CASCADE" if postgres else "DROP TRIGGER refuse")

    def _traces(self, job: Job[Any] | Claimed | str) -> Traces:
        traces = self.store.perform(browse.trace_job, _id(job))
        assert traces is not None
        return traces


def ids(jobs: Sequence[Job[Any] | Claimed]) -> list[str]:
    return [job.id for job in jobs]


def _id(job: Job[Any] | Claimed | str) -> str:
    return job if isinstance(job, str) else job.id
