"""The cycle: record what ended, take what is next, in one transaction.

While a turn is at the database, handlers run and outcomes gather for the next one. On PostgreSQL none takes more than
half of the slots, and a full one is sent although another is under way: server and handlers work side by side.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import NamedTuple, Protocol

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
"""How many may be under way where the store takes another: not on SQLite, which works in this process."""

SOON = 1.0
"""Seconds from one look to the next within which what came late may wait for it."""

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
        self._told_by = self._fed_by = 0
        self.drained = not tasks
        """The last claim found nothing, and nothing has been recorded since."""

    @property
    def hungry(self) -> bool:
        """There may be something to claim."""
        return self._rung or self._plenty

    def ring(self) -> None:
        self._rung = bool(self.tasks)

    def asks(self) -> None:
        """Whatever rings from here on may be about a job that this claim does not see."""
        self._rung = False

    def told(self, turn: int) -> None:
        """What ended leaves something behind, a snooze of nothing or jobs of its own: it may be due at once."""
        self._told_by = turn
        self.drained = not self.tasks

    def fed(self, turn: int, asked: int, jobs: Batch) -> None:
        """What a turn that was sent later has found counts, although it may have been answered before."""
        if turn > self._fed_by:
            self._fed_by = turn
            self._plenty = jobs.more or len(jobs) == asked
            self.drained = not (jobs or self._plenty) and turn >= self._told_by


class Held(NamedTuple):
    """Slots that a turn under way may take, here and in processes, beyond those that it frees itself."""

    here: int
    in_processes: int


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
        self._polls = not options.burst and options.poll <= SOON
        self._look_at = 0.0
        self._turns = TURNS if ledger.store.dialect == "postgres" else 1
        self._most = max(1, places.slots // self._turns)
        self._bell = asyncio.Event()
        self._ended: list[Attempt] = []
        self._insisting: set[asyncio.Task[None]] = set()
        self._under_way: dict[int, Held] = {}
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
    def turning(self) -> bool:
        return bool(self._under_way)

    @property
    def busy(self) -> bool:
        """Whether outcomes are still to be recorded."""
        return bool(self._ended or self._insisting or self.turning)

    @property
    def drained(self) -> bool:
        """The last claims found nothing, and nothing has rung since."""
        lanes = (self._here, self._in_processes)
        return not self.turning and all(lane.drained and not lane.hungry for lane in lanes)

    def wake(self) -> None:
        self._grow_hungry()
        self._bell.set()

    def look_again(self) -> None:
        """Where the last claim found something: a lane that has no slot to look for does not wake the other."""
        for lane in (self._here, self._in_processes):
            if not lane.drained:
                lane.ring()
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
            if self._there_is_work:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(self._look_at - now):
                    await self._bell.wait()

    @property
    def _there_is_work(self) -> bool:
        if not self.turning:
            return bool(self._ended) or any(self._appetites)
        # A turn costs as much as twenty jobs more in one: behind another only a full one is worth it.
        return len(self._ended) >= self._most and self._ledger.store.takes_another_turn

    def _grow_hungry(self) -> None:
        for lane in (self._here, self._in_processes):
            lane.ring()

    @property
    def _appetites(self) -> tuple[int, int]:
        """Slots of each lane that are free, or will be once this turn has recorded what ended."""
        if not self.claiming:
            return 0, 0
        here, there = _freed_by(self._ended)
        here += self._places.free - sum(held.here for held in self._under_way.values())
        there += self._places.free_processes - sum(held.in_processes for held in self._under_way.values())
        return (
            max(0, min(here, self._most)) if self._here.hungry else 0,
            max(0, there) if self._in_processes.hungry else 0,
        )

    async def _turn(self) -> None:
        (n, m), identity = self._appetites, self._worker.identity
        ended, self._ended = self._ended, []
        turn = self._begin(ended, n, m)
        outcomes = [(attempt, attempt.final()) for attempt in ended]
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
            del self._under_way[turn]
            await asyncio.sleep(self._health.failed(error))
            return
        if failpoints.armed and ended:
            failpoints.reach("after_flush_before_answer")
        self._health.worked(asked)
        self._settle(outcomes, finished)
        self._under_way[turn] = Held(len(jobs), m) if n else Held(0, len(jobs))
        more = await self._claim_for_processes(turn, identity, m) if n and m else []
        if failpoints.armed and (jobs or more):
            failpoints.reach("after_claim_before_start")
        del self._under_way[turn]
        self._worker.begin([*jobs, *more], identity)

    def _begin(self, ended: Sequence[Attempt], n: int, m: int) -> int:
        """The number of a turn that records these and claims so many."""
        self.begun = turn = self.begun + 1
        here, there = _freed_by(ended)
        self._under_way[turn] = Held(max(0, n - here), max(0, m - there))
        if ended:
            self._here.told(turn)
            self._in_processes.told(turn)
        return turn

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


def _freed_by(ended: Sequence[Attempt]) -> tuple[int, int]:
    """How many slots they leave, here and in processes."""
    in_processes = sum(attempt.handler.run_in == "process" for attempt in ended)
    return len(ended) - in_processes, in_processes


def concerns(topic: str, queues: Queues) -> bool:
    """Whether a bell of this topic is about one of these queues."""
    if queues is None:
        return topic.startswith("queue/")
    return any(topic == queue_topic(queue) for queue in queues)
