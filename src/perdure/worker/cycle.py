"""The cycle: record what ended, take what is next, in one transaction.

While a turn is at the database, handlers run and outcomes gather for the next one. On PostgreSQL none takes more than
half of the slots, and a full one is sent although another is under way: server and handlers work side by side.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import Protocol

from perdure import failpoints
from perdure.model.job import Claimed, Lease
from perdure.model.lifecycle import Change, Outcome
from perdure.ops.finish import Finished
from perdure.ops.topics import queue_topic
from perdure.worker.attempt import Attempt
from perdure.worker.health import OUT_OF_SERVICE, Health
from perdure.worker.ledger import Batch, Ledger, Queues
from perdure.worker.options import WorkerOptions
from perdure.worker.places import Places

TURNS = 2
"""How many may be under way on PostgreSQL. SQLite's would wait for the interpreter's lock: it works in this process."""

INSIST = 1.0
"""Seconds between two tries to record an outcome whose row somebody holds."""


class Cycling(Protocol):
    """The worker, as its cycle sees it."""

    @property
    def identity(self) -> str: ...

    def begin(self, jobs: Sequence[Claimed], identity: str) -> None:
        """These were claimed."""
        ...

    def recorded(self, attempt: Attempt, change: Change | None, *, accepted: bool) -> None:
        """The outcome is durable, or the lease was gone. ``change``: what it made of the job, if not a success."""
        ...


class Lane:
    """Tasks that share slots."""

    def __init__(self, tasks: Sequence[str]) -> None:
        self.tasks = tasks
        self._rung = bool(tasks)
        """Something may have come for which no claim has looked."""
        self._plenty = False
        """The last claim may have left something."""
        self._told_by = 0
        self.drained = not tasks
        """The last claim found nothing."""

    @property
    def hungry(self) -> bool:
        """There may be something to claim."""
        return self._rung or self._plenty

    def ring(self) -> None:
        self._rung = bool(self.tasks)

    def asks(self) -> None:
        """Whatever rings from here on may be about a job that this claim does not see."""
        self._rung = False

    def fed(self, turn: int, asked: int, jobs: Batch) -> None:
        """What a later turn has found out counts, although it may have been answered before."""
        if turn > self._told_by:
            self._told_by = turn
            self._plenty = jobs.more or len(jobs) == asked
            self.drained = not (jobs or self._plenty)


class Cycle:
    def __init__(
        self, worker: Cycling, places: Places, ledger: Ledger, health: Health, options: WorkerOptions
    ) -> None:
        self._worker = worker
        self._ledger = ledger
        self._health = health
        self._places = places
        self._here = Lane(places.tasks)
        self._in_processes = Lane(places.process_tasks)
        self._queues = options.queues
        self._poll = options.poll
        self._polls = not options.burst
        self._look_at = 0.0
        self._turns = TURNS if ledger.store.dialect == "postgres" else 1
        self._most = max(1, places.slots // self._turns)
        self._bell = asyncio.Event()
        self._ended: list[Attempt] = []
        self._insisting: set[asyncio.Task[None]] = set()
        self._under_way: set[int] = set()
        self.begun = 0
        """How many turns were sent."""
        self.claiming = True
        self.dead = False
        """It ended, and records nothing any more."""

    @property
    def over(self) -> int:
        """The turn up to which the jobs of all were begun."""
        return min(self._under_way, default=self.begun + 1) - 1

    @property
    def busy(self) -> bool:
        """Whether outcomes are still to be recorded."""
        return bool(self._ended or self._insisting or self._under_way)

    @property
    def drained(self) -> bool:
        """The last claims found nothing, and nothing has rung since."""
        lanes = (self._here, self._in_processes)
        return not self._under_way and all(lane.drained and not lane.hungry for lane in lanes)

    def wake(self) -> None:
        self._grow_hungry()
        self._bell.set()

    def record(self, attempt: Attempt) -> None:
        """To be written with the next turn."""
        if attempt.job.workflow_id is not None:
            self._grow_hungry()  # its end may release others, which the same turn can take
        self._ended.append(attempt)
        self._bell.set()

    async def run(self) -> None:
        turns = [asyncio.create_task(self._take_turns()) for _ in range(self._turns)]
        try:
            await asyncio.gather(*turns)
        finally:
            self.dead = True
            self.claiming = False
            for task in turns:
                task.cancel()
            await asyncio.gather(*turns, return_exceptions=True)

    async def _take_turns(self) -> None:
        while True:
            await self._until_there_is_work()
            await self._turn()

    async def _until_there_is_work(self) -> None:
        """Also while outcomes keep coming it is looked now and then: a job may be due by time alone."""
        while True:
            now = monotonic()
            if now >= self._look_at:
                self._look_at = now + self._poll
                self._grow_hungry()
            self._bell.clear()
            # A turn by itself costs as much as twenty jobs more in one: beside another only a full one is worth it.
            if len(self._ended) >= (self._most if self._under_way else 1):
                return
            if not self._under_way and any(self._appetites):
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(self._look_at - now):
                    await self._bell.wait()

    def _grow_hungry(self) -> None:
        for lane in (self._here, self._in_processes):
            lane.ring()

    @property
    def _appetites(self) -> tuple[int, int]:
        """Slots of each lane that are free, or will be once this turn has recorded what ended.

        Beside another only the latter: what is free is for that one.
        """
        if not self.claiming:
            return 0, 0
        there = sum(attempt.handler.run_in == "process" for attempt in self._ended)
        here = len(self._ended) - there
        if not self._under_way:
            here, there = here + self._places.free, there + self._places.free_processes
        return (
            max(0, min(here, self._most)) if self._here.hungry else 0,
            max(0, there) if self._in_processes.hungry else 0,
        )

    async def _turn(self) -> None:
        (n, m), identity = self._appetites, self._worker.identity
        ended, self._ended = self._ended, []
        if ended:
            # What they leave behind, a snooze of nothing or jobs of their own, may be due at once.
            for lane in (self._here, self._in_processes):
                lane.drained = not lane.tasks
        outcomes = [(attempt, attempt.final()) for attempt in ended]
        self.begun += 1
        self._under_way.add(turn := self.begun)
        asked = self._health.ask()
        if failpoints.armed and ended:
            failpoints.reach("before_flush")
        if failpoints.armed and (n or m):
            failpoints.reach("before_claim")
        try:
            await self._write_logs(ended)
            recording = [outcome for _, outcome in outcomes]
            if n:
                finished, jobs = await self._flush(turn, identity, recording, self._here, n)
            else:
                finished, jobs = await self._flush(turn, identity, recording, self._in_processes, m)
        except OUT_OF_SERVICE as error:
            self._ended[:0] = ended
            self._under_way.remove(turn)
            await asyncio.sleep(self._health.failed(error))
            return
        if failpoints.armed and ended:
            failpoints.reach("after_flush_before_answer")
        self._health.worked(asked)
        self._settle(outcomes, finished)
        more = await self._claim_for_processes(turn, identity, m) if n and m else []
        if failpoints.armed and (jobs or more):
            failpoints.reach("after_claim_before_start")
        self._under_way.remove(turn)
        self._worker.begin([*jobs, *more], identity)

    async def _flush(
        self, turn: int, identity: str, outcomes: Sequence[Outcome], lane: Lane, n: int
    ) -> tuple[Finished, Sequence[Claimed]]:
        if n:
            lane.asks()
        try:
            finished, jobs = await self._ledger.acycle(
                identity, outcomes, tasks=lane.tasks, n=n, queues=self._queues, polls=self._polls
            )
        except OUT_OF_SERVICE:
            if n:
                lane.ring()
            raise
        if n:
            lane.fed(turn, n, jobs)
        return finished, jobs

    async def _claim_for_processes(self, turn: int, identity: str, n: int) -> list[Claimed]:
        """A claim of its own: they have slots of their own, and others must not wait for those."""
        lane = self._in_processes
        lane.asks()
        try:
            jobs = await self._ledger.aclaim(
                identity, tasks=lane.tasks, n=n, queues=self._queues, polls=self._polls
            )
        except OUT_OF_SERVICE as error:
            lane.drained = False
            self._look_at = min(self._look_at, monotonic() + self._health.failed(error))
            return []
        lane.fed(turn, n, jobs)
        return jobs

    async def _write_logs(self, ended: Sequence[Attempt]) -> None:
        """An outcome carries the last report of its handler, but not its lines."""
        told = [(attempt, said) for attempt in ended if (said := attempt.context.take_logs())]
        if not told:
            return
        try:
            await self._ledger.areport([said for _, said in told])
        except OUT_OF_SERVICE:
            for attempt, said in told:
                attempt.context.put_back(said)
            raise

    def _settle(self, outcomes: Sequence[tuple[Attempt, Outcome]], finished: Finished) -> None:
        accepted, refused = set(finished.accepted), set(finished.refused)
        changes = {Lease(change.id, change.token): change for change in finished.changes}
        instead = {outcome.lease: outcome for outcome in finished.instead}
        for attempt, outcome in outcomes:
            if attempt.lease in accepted or attempt.lease in refused:
                change = changes.get(attempt.lease)
                attempt.outcome = instead.get(attempt.lease, attempt.outcome)
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
            except OUT_OF_SERVICE as error:
                await asyncio.sleep(self._health.failed(error))
                continue
            if finished.accepted or finished.refused:
                change = finished.changes[0] if finished.changes else None
                (attempt.outcome,) = finished.instead or (attempt.outcome,)
                return self._worker.recorded(attempt, change, accepted=bool(finished.accepted))


def concerns(topic: str, queues: Queues) -> bool:
    """Whether a bell of this topic is about one of these queues."""
    if queues is None:
        return topic.startswith("queue/")
    return any(topic == queue_topic(queue) for queue in queues)
