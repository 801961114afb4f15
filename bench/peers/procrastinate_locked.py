"""Procrastinate with a lock for each job, one of a thousand. Jobs with the same lock run one after the other."""

from __future__ import annotations

import random
from collections.abc import Sequence

from bench.peers.procrastinate import Procrastinate
from bench.peers.protocol import SUBJECT, TO, main

LOCKS = 1_000


class LockedProcrastinate(Procrastinate):
    async def one(self, tag: int) -> None:
        deferrer = self._app.configure_task(self.kind, lock=str(random.randrange(LOCKS)))
        await deferrer.defer_async(to=TO, subject=SUBJECT, number=tag)

    async def many(self, tags: Sequence[int]) -> None:
        """Its bulk call takes one lock for all jobs."""
        for tag in tags:
            await self.one(tag)


if __name__ == "__main__":
    main(LockedProcrastinate)
