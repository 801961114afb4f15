"""PgQueuer on asyncpg: batches of 100 and, in a worker, uvloop, as its own command has it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import asyncpg
from pgqueuer import AsyncpgDriver, Job, PgQueuer, Queries

from bench.peers.protocol import SUBJECT, TO, Peer, main, notes


class Pgqueuer(Peer):
    packages = ("pgqueuer", "asyncpg", "uvloop")

    async def setup(self) -> None:
        await self.connect()
        await self._queries.install()

    async def connect(self) -> None:
        self._connection = await asyncpg.connect(self.url)
        # For 50 callers as well: on one connection they got 1,400 jobs/s in, over a pool of ten 900.
        self._queries = Queries(AsyncpgDriver(self._connection))

    async def one(self, tag: int) -> None:
        await self._queries.enqueue(self.kind, _payload(tag))

    async def many(self, tags: Sequence[int]) -> None:
        n = len(tags)
        await self._queries.enqueue([self.kind] * n, [_payload(tag) for tag in tags], [0] * n)

    async def remaining(self) -> int:
        # A finished job's row is deleted; a row of its log takes its place.
        return int(await self._connection.fetchval("SELECT count(*) FROM pgqueuer"))

    def work(self, concurrency: int) -> None:
        asyncio.run(self._work(concurrency))

    async def _work(self, concurrency: int) -> None:
        worker = PgQueuer(AsyncpgDriver(await asyncpg.connect(self.url)))

        @worker.entrypoint("async")
        async def send(job: Job) -> None:
            notes.begin(_tag(job))

        @worker.entrypoint("sync")
        async def send_blocking(job: Job) -> None:
            await asyncio.to_thread(lambda: notes.begin(_tag(job)))  # it runs no other kind itself

        await worker.run(batch_size=concurrency)


def _payload(tag: int) -> bytes:
    return f"{TO}\n{SUBJECT}\n{tag}".encode()


def _tag(job: Job) -> int:
    return int(job.payload.rpartition(b"\n")[2])


if __name__ == "__main__":
    main(Pgqueuer)
