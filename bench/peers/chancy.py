"""Chancy on psycopg, 200 jobs at a time, with the plugins it comes with. It logs each job unless told not to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import psycopg
from chancy import Chancy, Job, Queue, Worker

from bench.peers.protocol import SUBJECT, TO, Peer, main, notes

EXECUTORS = {"async": Chancy.Executor.Async, "sync": Chancy.Executor.Threaded}


async def send(*, to: str, subject: str, number: int) -> None:
    notes.begin(number)


def send_blocking(*, to: str, subject: str, number: int) -> None:
    notes.begin(number)


FUNCTIONS = {"async": f"{__package__}.chancy.send", "sync": f"{__package__}.chancy.send_blocking"}


class ChancyPeer(Peer):
    packages = ("chancy", "psycopg")

    async def setup(self) -> None:
        async with self._chancy() as chancy:
            await chancy.migrate()

    async def connect(self) -> None:
        self._app = self._chancy()
        await self._app.pool.open()
        self._connection = await psycopg.AsyncConnection.connect(self.url, autocommit=True)

    async def one(self, tag: int) -> None:
        await self._app.push(self._job(tag))

    async def many(self, tags: Sequence[int]) -> None:
        async for _ in self._app.push_many([self._job(tag) for tag in tags]):
            pass

    async def remaining(self) -> int:
        cursor = await self._connection.execute(
            "SELECT count(*) FROM chancy_jobs WHERE state NOT IN ('succeeded', 'failed')"
        )
        row = await cursor.fetchone()
        assert row is not None
        return int(row[0])

    def work(self, concurrency: int) -> None:
        asyncio.run(self._work(concurrency))

    async def _work(self, concurrency: int) -> None:
        async with self._chancy() as chancy:
            # Eager, or it would take one batch every five seconds.
            queue = Queue(
                "default", concurrency=concurrency, executor=EXECUTORS[self.kind], eager_polling=True
            )
            await chancy.declare(queue, upsert=True)
            async with Worker(chancy, register_signal_handlers=False) as worker:
                await worker.wait_for_shutdown()

    def _chancy(self) -> Chancy:
        return Chancy(self.url, log=logging.getLogger("chancy"))

    def _job(self, tag: int) -> Job:
        arguments = {"to": TO, "subject": SUBJECT, "number": tag}
        return Job(func=FUNCTIONS[self.kind], kwargs=arguments)


if __name__ == "__main__":
    main(ChancyPeer)
