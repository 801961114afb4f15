"""Procrastinate on psycopg, 30 jobs at a time, the best of a sweep."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import psycopg
from procrastinate import App, PsycopgConnector

from bench.peers.protocol import SUBJECT, TO, Peer, main, notes


class Procrastinate(Peer):
    packages = ("procrastinate", "psycopg")

    def __init__(self, url: str, *, kind: str = "", blocking: bool = False) -> None:
        super().__init__(url, kind=kind, blocking=blocking)
        self._app = App(connector=PsycopgConnector(conninfo=url, min_size=4, max_size=20))

        @self._app.task(name="async")
        async def send(to: str, subject: str, number: int) -> None:
            notes.begin(number)

        @self._app.task(name="sync")
        def send_blocking(to: str, subject: str, number: int) -> None:
            notes.begin(number)

    async def setup(self) -> None:
        async with self._app.open_async():
            await self._app.schema_manager.apply_schema_async()

    async def connect(self) -> None:
        await self._app.open_async()
        self._deferrer = self._app.configure_task(self.kind)
        self._connection = await psycopg.AsyncConnection.connect(self.url, autocommit=True)

    async def one(self, tag: int) -> None:
        await self._deferrer.defer_async(to=TO, subject=SUBJECT, number=tag)

    async def many(self, tags: Sequence[int]) -> None:
        jobs = [{"to": TO, "subject": SUBJECT, "number": tag} for tag in tags]
        await self._deferrer.batch_defer_async(*jobs)

    async def remaining(self) -> int:
        cursor = await self._connection.execute(
            "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
        )
        row = await cursor.fetchone()
        assert row is not None
        return int(row[0])

    def work(self, concurrency: int) -> None:
        asyncio.run(self._work(concurrency))

    async def _work(self, concurrency: int) -> None:
        async with self._app.open_async():
            await self._app.run_worker_async(concurrency=concurrency, install_signal_handlers=False)


if __name__ == "__main__":
    main(Procrastinate)
