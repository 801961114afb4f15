"""The cycle: record what ended, take what is next, in one transaction.

While a turn is at the database, handlers run and outcomes gather for the next one. That one is sent before the jobs
of the last are begun, and on PostgreSQL none takes more than half of the slots: server and handlers work side by side.
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
        self.hungry = bool(tasks)
        """There may be something to claim."""
        self.drained = not tasks
        """The last claim found nothing."""

    def fed(self, asked: int, jobs: Batch) -> None:
        more = jobs.more or len(jobs) == asked
        self.drained = not (jobs or more)
        self.hungry = self.hungry or more


class Taken(NamedTuple):
    """What a turn has claimed, until it begins. They count against the slots, some against those of processes."""

    identity: str
    jobs: Sequence[Claimed] = ()
    in_processes: int = 0


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
        self._loop = asyncio.get_running_loop()
        # SQLite works in this process, and would wait for the interpreter's lock: there one turn takes all.
        self._most = max(1, places.slots // 2) if ledger.store.dialect == "postgres" else places.slots
        self._bell = asyncio.Event()
        self._ended: list[Attempt] = []
        self._insisting: set[asyncio.Task[None]] = set()
        self._taken: Taken | None = None
        self._error: BaseException | None = None
        self.begun = self.over = 0
        """How many turns were sent, and of how many the jobs were begun."""
        self.claiming = True
        self.dead = False
        """It ended, and records nothing any more."""

    @property
    def busy(self) -> bool:
        """Whether outcomes are still to be recorded."""
        return bool(self._ended or self._insisting or self.begun > self.over)

    @property
    def drained(self) -> bool:
        """The last claims found nothing, and nothing has rung since."""
        lanes = (self._here, self._in_processes)
        return self.begun == self.over and all(lane.drained and not lane.hungry for lane in lanes)

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
        try:
            while True:
                await self._until_there_is_work()
                await self._turn()
                if self._error is not None:
                    raise self._error
        except BaseException:
            self.dead = True
            self.claiming = False
            self._begin()
            raise

    async def _until_there_is_work(self) -> None:
        """Also while outcomes keep coming it is looked now and then: a job may be due by time alone."""
        while True:
            now = monotonic()
            if now >= self._look_at:
                self._look_at = now + self._poll
                self._grow_hungry()
            self._bell.clear()
            if self._ended or any(self._appetites):
                return
            if self._taken is not None:
                self._begin()
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(self._look_at - now):
                    await self._bell.wait()

    def _begin(self) -> None:
        """Begin what the last turn took."""
        taken, self._taken = self._taken, None
        if taken is None:
            return
        if failpoints.armed and taken.jobs:
            failpoints.reach("after_claim_before_start")
        self.over += 1
        self._worker.begin(taken.jobs, taken.identity)

    def _begin_aside(self) -> None:
        try:
            self._begin()
        except BaseException as error:
            self._error = error

    def _grow_hungry(self) -> None:
        for lane in (self._here, self._in_processes):
            lane.hungry = bool(lane.tasks)

    @property
    def _appetites(self) -> tuple[int, int]:
        """Slots of each lane that are free, or will be once this turn has recorded what ended."""
        if not self.claiming:
            return 0, 0
        in_processes = sum(attempt.handler.run_in == "process" for attempt in self._ended)
        here = self._places.free + len(self._ended) - in_processes
        there = self._places.free_processes + in_processes
        if self._taken is not None:
            here -= len(self._taken.jobs) - self._taken.in_processes
            there -= self._taken.in_processes
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
        asked = self._health.ask()
        if failpoints.armed and ended:
            failpoints.reach("before_flush")
        if failpoints.armed and (n or m):
            failpoints.reach("before_claim")
        if self._taken is not None:
            self._loop.call_soon(self._begin_aside)  # once this turn is on its way
        try:
            await self._write_logs(ended)
            recording = [outcome for _, outcome in outcomes]
            if n:
                finished, jobs = await self._flush(identity, recording, self._here, n)
            else:
                finished, jobs = await self._flush(identity, recording, self._in_processes, m)
        except OUT_OF_SERVICE as error:
            self._ended[:0] = ended
            self.over += 1
            await asyncio.sleep(self._health.failed(error))
            return
        if failpoints.armed and ended:
            failpoints.reach("after_flush_before_answer")
        self._health.worked(asked)
        self._settle(outcomes, finished)
        more = await self._claim_for_processes(identity, m) if n and m else []
        self._begin()  # if the answer was there before the loop came round
        self._taken = Taken(identity, [*jobs, *more], len(more) if n else len(jobs))
        if not self._taken.jobs:
            self._begin()  # or a burst would never see that it has come to its end

    async def _flush(
        self, identity: str, outcomes: Sequence[Outcome], lane: Lane, n: int
    ) -> tuple[Finished, Sequence[Claimed]]:
        # Whatever rings from here on may be about a job that this claim does not see.
        lane.hungry = lane.hungry and not n
        try:
            finished, jobs = await self._ledger.acycle(
                identity, outcomes, tasks=lane.tasks, n=n, queues=self._queues, polls=self._polls
            )
        except OUT_OF_SERVICE:
            lane.hungry = lane.hungry or n > 0
            raise
        if n:
            lane.fed(n, jobs)
        return finished, jobs

    async def _claim_for_processes(self, identity: str, n: int) -> list[Claimed]:
        """A claim of its own: they have slots of their own, and others must not wait for those."""
        lane = self._in_processes
        lane.hungry = False
        try:
            jobs = await self._ledger.aclaim(
                identity, tasks=lane.tasks, n=n, queues=self._queues, polls=self._polls
            )
        except OUT_OF_SERVICE as error:
            lane.drained = False
            self._look_at = min(self._look_at, monotonic() + self._health.failed(error))
            return []
        lane.fed(n, jobs)
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
