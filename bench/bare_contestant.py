"""The bare loops on psycopg and sqlite3 as contestants: the limit, on tables that perdure has made."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property

from bench.bare_postgres import BarePostgres
from bench.bare_sqlite import BareSqlite
from bench.peers.protocol import UNTAGGED, Peer, main, notes
from bench.perdure_contestant import UNFINISHED, count
from bench.workload import Side, mails

MAILS = mails(1000)


class Bare(Peer):
    packages = ("psycopg",)
    kinds = ("async",)
    has_async = False

    @cached_property
    def _side(self) -> Side:
        bare = BareSqlite if self.url.startswith("sqlite") else BarePostgres
        return bare(self.url, result="null")  # what a handler without a result leaves

    async def one(self, tag: int) -> None:
        self._side.enqueue(MAILS[0])

    async def many(self, tags: Sequence[int]) -> None:
        self._side.enqueue_many(MAILS[: len(tags)])

    async def remaining(self) -> int:
        return count(self.url, UNFINISHED)

    def work(self, concurrency: int) -> None:
        while True:
            claimed = self._side.cycle(concurrency)
            for _ in range(claimed):
                notes.begin(UNTAGGED)
            if not claimed:
                time.sleep(0.005)


if __name__ == "__main__":
    main(Bare)
