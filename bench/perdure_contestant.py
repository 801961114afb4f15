"""Perdure as a contestant, asked like its peers (`peers/protocol.py`), and with work of kinds only it is given."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from functools import cache
from typing import TYPE_CHECKING, Any

from bench.peers.protocol import SUBJECT, TO, UNTAGGED, Peer, main, notes
from bench.workload import QUEUE, TASK
from perdure import App, Context, Retry
from perdure.client.task import Task

if TYPE_CHECKING:
    import psycopg

SILENT = "PERDURE_BENCH_SILENT"
"""In the environment: let no enqueue notify, to see what that costs."""

LARGE = "x" * 64_000
WEIGHTS = {"mail-1": 1.0, "mail-2": 2.0, "mail-3": 4.0, "mail-4": 8.0}

READY = "SELECT count(*) FROM {job} WHERE state = 'ready' AND held IS NULL"
RUNNING = "SELECT count(*) FROM {job} WHERE state = 'running'"
UNFINISHED = "SELECT count(*) FROM {job} WHERE state NOT IN ('succeeded', 'failed', 'canceled')"


class Perdure(Peer):
    packages = ("perdure",)
    kinds = ("async", "sync", "sleeping", "failing", "large", "queues")

    def __init__(self, url: str, *, kind: str = "", blocking: bool = False) -> None:
        super().__init__(url, kind=kind, blocking=blocking)
        self.has_async = not blocking
        self._app = App(url)
        self._task = _task(self._app, self.kind)
        self._made = 0

    async def setup(self) -> None:
        await self._app.amigrate()
        await self._app.asave_tasks()
        await self._app.aclose()

    async def connect(self) -> None:
        # What a process does once belongs to no enqueue: the others connect here, too.
        if self.blocking:
            self._app.save_tasks()
        else:
            await self._app.asave_tasks()
        if os.environ.get(SILENT):
            from perdure.store.postgres import transaction

            assert callable(transaction.notice), "nothing to silence any more"
            transaction.notice = lambda channel, topics: None

    async def one(self, tag: int) -> None:
        if self.blocking:
            self._task.enqueue(TO, SUBJECT, number=tag)
        else:
            await self._task.aenqueue(TO, SUBJECT, number=tag)

    async def many(self, tags: Sequence[int]) -> None:
        jobs = [self._job(tag) for tag in tags]
        if self.blocking:
            self._app.enqueue_many(jobs)
        else:
            await self._app.aenqueue_many(jobs)

    async def remaining(self) -> int:
        # Counted by the indexes while there is work: a look must cost little, however much is finished.
        live = count(self.url, READY) + count(self.url, RUNNING)
        return live or count(self.url, UNFINISHED)

    def work(self, concurrency: int) -> None:
        queues = WEIGHTS if self.kind == "queues" else None
        self._app.run_worker(concurrency=concurrency, queues=queues)

    def _job(self, tag: int) -> Any:
        self._made += 1
        if self.kind == "queues":
            queue = f"mail-{self._made % len(WEIGHTS) + 1}"
            return self._task.using(queue=queue).job(TO, SUBJECT, number=tag)
        if self.kind == "failing":
            return self._task.job(TO, SUBJECT, number=self._made)
        return self._task.job(TO, LARGE if self.kind == "large" else SUBJECT, number=tag)


def _task(app: App, kind: str) -> Task[..., Any]:
    """The task of this kind; all bear one name, the bare side's."""

    async def send(to: str, subject: str, *, number: int) -> None:
        notes.begin(number)

    def send_blocking(to: str, subject: str, *, number: int) -> None:
        notes.begin(number)

    async def sleep(to: str, subject: str, *, number: int) -> None:
        notes.begin(number)
        await asyncio.sleep(0.01)

    async def fail(to: str, subject: str, *, number: int) -> None:
        notes.begin(UNTAGGED)
        if number % 10 < 3 and Context.current().attempt == 1:
            raise Retry("three of ten fail once")

    functions: dict[str, Any] = {"sync": send_blocking, "sleeping": sleep, "failing": fail}
    made: Task[..., Any] = app.task(name=TASK, queue=QUEUE, backoff=0)(functions.get(kind, send))
    return made


def count(url: str, statement: str) -> int:
    """What a count over the table of jobs gives; ``{job}`` stands for its name."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            return int(connection.execute(statement.format(job="perdure_job")).fetchone()[0])
    row = _connect(url).execute(statement.format(job="perdure.job").encode()).fetchone()
    assert row is not None
    return int(row[0])


@cache
def _connect(url: str) -> psycopg.Connection[Any]:
    import psycopg  # not at the top: a worker on SQLite should start without it, as any user's does

    return psycopg.connect(url, autocommit=True)


if __name__ == "__main__":
    main(Perdure)
