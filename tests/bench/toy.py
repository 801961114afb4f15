"""A contestant small enough to trust: jobs are rows of a file, a worker deletes them one by one."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence

from bench.peers.protocol import Peer, main, notes

TAKE = "DELETE FROM job WHERE id = (SELECT min(id) FROM job) RETURNING tag"


class Toy(Peer):
    packages = ("pytest",)
    kinds = ("sync", "dead", "chatty")

    def __init__(self, url: str, *, kind: str = "", blocking: bool = False) -> None:
        super().__init__(url, kind=kind, blocking=blocking)
        self.has_async = not blocking
        self._file = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        self._file.execute("PRAGMA busy_timeout = 5000")

    async def setup(self) -> None:
        self._file.execute("CREATE TABLE job (id INTEGER PRIMARY KEY, tag INTEGER)")

    async def one(self, tag: int) -> None:
        await self.many([tag])

    async def many(self, tags: Sequence[int]) -> None:
        self._file.execute("BEGIN IMMEDIATE")
        self._file.executemany("INSERT INTO job (tag) VALUES (?)", [(tag,) for tag in tags])
        self._file.execute("COMMIT")

    async def remaining(self) -> int:
        return int(self._file.execute("SELECT count(*) FROM job").fetchone()[0])

    def work(self, concurrency: int) -> None:
        if self.kind == "dead":
            raise RuntimeError("the toy is broken")
        while True:
            if self.kind == "chatty":
                print("not a line of the protocol", flush=True)
            for (tag,) in self._file.execute(TAKE).fetchall():
                notes.begin(tag)
            time.sleep(0.001)


if __name__ == "__main__":
    main(Toy)
