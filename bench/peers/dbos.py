"""DBOS on PostgreSQL: a queue without a limit, enqueued to by its client. It looks for work once a second."""

from __future__ import annotations

import os
import threading
from typing import ClassVar

import psycopg
from dbos import DBOS, DBOSClient, DBOSConfig

from bench.peers.protocol import SUBJECT, TO, Peer, main, notes

QUEUE = "mail"
VERSION = "1"
"""Of the application; left alone it is a hash of the sources, and another process's jobs are not taken."""


@DBOS.workflow(name="async")
async def send(to: str, subject: str, number: int) -> None:
    notes.begin(number)


@DBOS.workflow(name="sync")
def send_blocking(to: str, subject: str, number: int) -> None:
    notes.begin(number)


class Dbos(Peer):
    packages = ("dbos", "sqlalchemy", "psycopg")
    kinds = ("sync", "async")
    """Plain functions in threads are what its guide shows first."""
    has_bulk = False
    has_async = False
    """Its async calls are the blocking ones in a thread."""
    concurrency: ClassVar[int | None] = None
    """The limit of the queue, for all workers together."""

    async def setup(self) -> None:
        self._launch()
        DBOS.destroy()

    async def connect(self) -> None:
        self._client = DBOSClient(system_database_url=self.url)
        self._connection = psycopg.connect(self.url, autocommit=True)

    async def one(self, tag: int) -> None:
        options = {"workflow_name": self.kind, "queue_name": QUEUE, "app_version": VERSION}
        self._client.enqueue(options, TO, SUBJECT, tag)

    async def remaining(self) -> int:
        row = self._connection.execute(
            "SELECT count(*) FROM dbos.workflow_status WHERE status IN ('ENQUEUED', 'PENDING')"
        ).fetchone()
        assert row is not None
        return int(row[0])

    def work(self, concurrency: int) -> None:
        self._launch()
        threading.Event().wait()

    def _launch(self) -> None:
        config: DBOSConfig = {
            "name": "bench",
            "system_database_url": self.url,
            "application_version": VERSION,
            # One that starts runs again what others of its name have begun.
            "executor_id": str(os.getpid()),
            "log_level": "CRITICAL",
        }
        DBOS(config=config)
        DBOS.launch()
        DBOS.register_queue(QUEUE, global_concurrency=self.concurrency)


if __name__ == "__main__":
    main(Dbos)
