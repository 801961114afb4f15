"""The cycle: record what ended, take what is next, in one transaction; while it is under way, outcomes gather."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from perdure import failpoints
from perdure.errors import Unavailable
from perdure.model.job import Claimed, Lease
from perdure.model.lifecycle import Change, Outcome
from perdure.ops.finish import Finished
from perdure.worker.attempt import Attempt
from perdure.worker.health import Health
from perdure.worker.ledger import Ledger, Queues

INSIST = 1.0
"""Seconds between two tries to record an outcome whose row somebody holds."""


class Cycling(Protocol):
    """The worker, as its cycle sees it."""

    @property
    def identity(self) -> str: ...

    @property
    def free(self) -> int:
        """How many more jobs it could run."""
        ...

    def begin(self, jobs: Sequence[Claimed], identity: str) -> None:
        """These were claimed."""
        ...

    def recorded(self, attempt: Attempt, change: Change | None, *, accepted: bool) -> None:
        """The outcome is durable, or the lease was gone. ``change``: what it made of the job, if not a success."""
        ...


class Cycle:
    def __init__(
        self,
        worker: Cycling,
        ledger: Ledger,
        health: Health,
        *,
        tasks: Sequence[str],
        queues: Queues,
        poll: float,
    ) -> None:
        self._worker = worker
        self._ledger = ledger
        self._health = health
        self._tasks = tasks
        self._queues = queues
        self._poll = poll
        self._bell = asyncio.Event()
        self._ended: list[Attempt] = []
        self._insisting: set[asyncio.Task[None]] = set()
        self._turns = 0
        self._under_way = False
        self.claiming = True
        self.hungry = True
        """There may be something to claim."""
        self.drained = False
        """The last claim found nothing."""

    @property
    def busy(self) -> bool:
        """Whether outcomes are still to be recorded."""
        return bool(self._ended or self._insisting or self._under_way)

    @property
    def turn(self) -> tuple[int, bool]:
        """The number of the last turn begun, and whether it is still under way."""
        return self._turns, self._under_way

    def wake(self) -> None:
        self.hungry = True
        self._bell.set()

    def record(self, attempt: Attempt) -> None:
        """To be written with the next turn."""
        self._ended.append(attempt)
        self._bell.set()

    async def run(self) -> None:
        while True:
            await self._until_there_is_work()
            await self._turn()

    async def _until_there_is_work(self) -> None:
        while not (self._ended or self._appetite):
            self._bell.clear()
            try:
                async with asyncio.timeout(self._poll):
                    await self._bell.wait()
            except TimeoutError:
                self.hungry = True
        self._bell.clear()

    @property
    def _appetite(self) -> int:
        """Slots that are free, or will be once this turn has recorded what ended."""
        if not (self.claiming and self.hungry):
            return 0
        return max(0, self._worker.free + len(self._ended))

    async def _turn(self) -> None:
        n, identity = self._appetite, self._worker.identity
        ended, self._ended = self._ended, []
        outcomes = [(attempt, attempt.final()) for attempt in ended]
        if n:
            # Whatever rings from here on may be about a job that this claim does not see.
            self.hungry = False
        self._turns += 1
        self._under_way = True
        if failpoints.armed:
            failpoints.reach("before_flush" if ended else "before_claim")
        try:
            await self._write_logs(ended)
            finished, jobs = await self._ledger.acycle(
                identity, [outcome for _, outcome in outcomes], tasks=self._tasks, n=n, queues=self._queues
            )
        except Unavailable as error:
            self._under_way = False
            self._ended[:0] = ended
            self.hungry = self.hungry or n > 0
            await asyncio.sleep(self._health.failed(error))
            return
        self._under_way = False
        if failpoints.armed:
            failpoints.reach("after_flush_before_answer" if ended else "after_claim_before_start")
        self._health.worked()
        self._settle(outcomes, finished)
        if n:
            self.drained = not jobs
            self.hungry = self.hungry or len(jobs) == n
        self._worker.begin(jobs, identity)

    async def _write_logs(self, ended: Sequence[Attempt]) -> None:
        """An outcome carries the last report of its handler, but not its lines."""
        told = [(attempt, said) for attempt in ended if (said := attempt.context.take_logs())]
        if not told:
            return
        try:
            await self._ledger.areport([said for _, said in told])
        except Unavailable:
            for attempt, said in told:
                attempt.context.put_back(said)
            raise

    def _settle(self, outcomes: Sequence[tuple[Attempt, Outcome]], finished: Finished) -> None:
        accepted, refused = set(finished.accepted), set(finished.refused)
        changes = {Lease(change.id, change.token): change for change in finished.changes}
        for attempt, outcome in outcomes:
            if attempt.lease in accepted or attempt.lease in refused:
                change = changes.get(attempt.lease)
                self._worker.recorded(attempt, change, accepted=attempt.lease in accepted)
            else:
                task = asyncio.create_task(self._insist(attempt, outcome))
                self._insisting.add(task)
                task.add_done_callback(self._insisting.discard)

    async def _insist(self, attempt: Attempt, outcome: Outcome) -> None:
        """Somebody holds the row in a transaction of their own; the others have gone ahead."""
        while True:
            await asyncio.sleep(INSIST)
            try:
                finished = await self._ledger.afinish([outcome])
            except Unavailable as error:
                await asyncio.sleep(self._health.failed(error))
                continue
            if finished.accepted or finished.refused:
                change = finished.changes[0] if finished.changes else None
                return self._worker.recorded(attempt, change, accepted=bool(finished.accepted))
