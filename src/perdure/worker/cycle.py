"""The cycle: record the outcomes of ended attempts and claim the next jobs, in one transaction.

While a cycle is at the database, handlers run and outcomes collect for the next one. On PostgreSQL a cycle claims for
at most half of the slots. Once that many outcomes have collected, a second cycle is sent while the first is under way,
so that the server and the handlers work at the same time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from time import monotonic
from typing import NamedTuple, Protocol

from perdure.internal import failpoints
from perdure.model.job import Claimed, Lease
from perdure.model.lifecycle import Change, Outcome
from perdure.ops.finish import Finished
from perdure.ops.topics import queue_topic
from perdure.worker.attempt import Attempt
from perdure.worker.database_errors import NOT_DONE, is_refusal
from perdure.worker.health import Health
from perdure.worker.operations import Queues, WorkerOperations
from perdure.worker.options import WorkerOptions
from perdure.worker.reports import put_back, warn_of_lost_lines
from perdure.worker.slot_group import SlotGroup
from perdure.worker.slots import Slots

MOST_CYCLES = 2
"""How many cycles may be under way at the same time on PostgreSQL. On SQLite only one may be."""

SOON = 1.0
"""If polls are at most this many seconds apart, a claim need not find jobs that were enqueued long before their commit.
The next poll finds them."""

RETRY_RECORD, RETRY_EACH = 1.0, 0.01
"""Seconds between two tries to record outcomes that the database did not take: at least ``RETRY_RECORD``, and at least
``RETRY_EACH`` for each outcome, because each refused row costs transactions of its own."""


class ClaimsAndOutcomes(Protocol):
    """What the cycle needs from the executor."""

    @property
    def identity(self) -> str: ...

    def claimed(self, jobs: Sequence[Claimed], identity: str) -> None:
        """Run these jobs, which were claimed under this identity."""
        ...

    def recorded(self, attempt: Attempt, change: Change | None, *, accepted: bool) -> None:
        """Called when the outcome is durable, or was refused because the lease is gone.

        ``change``: what the outcome changed in the job's row; None for a plain success.
        """
        ...


class ReservedSlots(NamedTuple):
    """Free slots that are reserved for the jobs of a cycle under way.

    ``here``: slots on the event loop and in threads. Slots that the cycle's own outcomes free are not counted.
    """

    here: int
    in_processes: int


class Cycle:
    """Runs the cycles of a worker."""

    def __init__(
        self,
        executor: ClaimsAndOutcomes,
        slots: Slots,
        operations: WorkerOperations,
        health: Health,
        options: WorkerOptions,
    ) -> None:
        self._executor = executor
        self._operations = operations
        self._health = health
        self._slots = slots
        self._here = SlotGroup(slots.tasks)
        self._in_processes = SlotGroup(slots.process_tasks)
        self._queues = options.queues
        self._poll = options.poll
        self._polls = not options.burst and options.poll <= SOON
        self._look_at = 0.0
        self._concurrent = 1 if operations.store.embedded else MOST_CYCLES
        self._most = max(1, slots.total // self._concurrent)
        self._wakeup = asyncio.Event()
        self._ended: list[Attempt] = []
        self._kept: dict[Attempt, Outcome] = {}
        """Outcomes that the database does not take yet, because their rows are locked or refused."""
        self._retrying: asyncio.Task[None] | None = None
        self._under_way: dict[int, ReservedSlots] = {}
        self.begun = 0
        """How many cycles were sent."""
        self.claiming = True
        self.dead = False
        """Whether ``run`` has ended, so that nothing is recorded any more."""

    @property
    def started_through(self) -> int:
        """The jobs of all cycles up to this number were started. A later cycle may still be under way."""
        return min(self._under_way, default=self.begun + 1) - 1

    @property
    def is_under_way(self) -> bool:
        return bool(self._under_way)

    def only_retries(self, left: Iterable[Attempt]) -> bool:
        """Whether nothing is left to do but to retry kept outcomes. ``left``: the worker's attempts."""
        recorded = not (self._ended or self.is_under_way)
        return bool(self._kept) and recorded and all(attempt.ended for attempt in left)

    @property
    def busy(self) -> bool:
        """Whether a cycle is under way, or outcomes are still to be recorded."""
        return bool(self._ended or self._kept or self.is_under_way)

    @property
    def drained(self) -> bool:
        """Whether the last claims found nothing and no change was noted since."""
        groups = (self._here, self._in_processes)
        return not self.is_under_way and all(group.drained and not group.wants_claim for group in groups)

    def wake(self) -> None:
        self._want_claims()
        self._wakeup.set()

    def look_again(self) -> None:
        """Claim again for the slot groups that are not drained.

        A group without free slots may stay undrained for long. Meanwhile a drained group must not claim repeatedly.
        """
        for group in (self._here, self._in_processes):
            if not group.drained:
                group.note_change()
        self._wakeup.set()

    def record(self, attempt: Attempt) -> None:
        """Record this attempt's outcome with the next cycle."""
        # The outcome may release other steps, or make room under a limit. The same cycle can claim those jobs.
        limited = self._is_limited(attempt)
        if limited:
            self._operations.limited_job_ended()
        if attempt.job.workflow_id is not None or limited:
            self._want_claims()
        self._ended.append(attempt)
        self._wakeup.set()

    def _is_limited(self, attempt: Attempt) -> bool:
        return self._operations.is_limited(attempt.job.queue, attempt.job.task)

    async def run(self) -> None:
        cycles = [asyncio.create_task(self._run_cycles()) for _ in range(self._concurrent)]
        try:
            await asyncio.gather(*cycles)
        finally:
            self.dead = True
            self.claiming = False
            # The retries are cancelled too, because the worker records kept outcomes when it ends.
            tasks = cycles if self._retrying is None else [*cycles, self._retrying]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _run_cycles(self) -> None:
        while True:
            await self._until_there_is_work()
            await self._cycle()

    async def _until_there_is_work(self) -> None:
        """Wait until there is something to record or to claim.

        Polls continue while outcomes arrive, because a job may become due by time alone.
        """
        while True:
            now = monotonic()
            if now >= self._look_at:
                self._look_at = now + self._poll
                self._want_claims()
            self._wakeup.clear()
            if self._there_is_work:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(self._look_at - now):
                    await self._wakeup.wait()

    @property
    def _there_is_work(self) -> bool:
        if not self.is_under_way:
            return bool(self._ended) or any(self._claim_sizes)
        # The overhead of a cycle equals the cost of twenty jobs. So only a full cycle is worth sending while another is
        # under way.
        return len(self._ended) >= self._most and self._operations.store.takes_another_cycle

    def _want_claims(self) -> None:
        for group in (self._here, self._in_processes):
            group.note_change()

    @property
    def _claim_sizes(self) -> tuple[int, int]:
        """How many jobs the next cycle claims for each group. The slots of attempts that it records count as free."""
        if not self.claiming:
            return 0, 0
        here, in_processes = _freed_by(self._ended)
        here += self._slots.free - sum(held.here for held in self._under_way.values())
        in_processes += self._slots.free_processes - sum(
            held.in_processes for held in self._under_way.values()
        )
        return (
            max(0, min(here, self._most)) if self._here.wants_claim else 0,
            max(0, in_processes) if self._in_processes.wants_claim else 0,
        )

    async def _cycle(self) -> None:
        (here, in_processes), identity = self._claim_sizes, self._executor.identity
        ended, self._ended = self._ended, []
        cycle = self._begin(ended, here, in_processes)
        outcomes = [(attempt, attempt.final_outcome()) for attempt in ended]
        asked = self._health.ask()
        if failpoints.armed and ended:
            failpoints.reach("before_flush")
        if failpoints.armed and (here or in_processes):
            failpoints.reach("before_claim")
        try:
            unwritten = await self._write_logs(ended)
            recording = [outcome for attempt, outcome in outcomes if attempt not in unwritten]
            if here:
                finished, jobs = await self._flush(cycle, identity, recording, self._here, here)
            else:
                finished, jobs = await self._flush(
                    cycle, identity, recording, self._in_processes, in_processes
                )
        except NOT_DONE as error:
            self._ended[:0] = ended
            del self._under_way[cycle]
            await asyncio.sleep(self._health.failed(error))
            return
        if failpoints.armed and ended:
            failpoints.reach("after_flush_before_answer")
        self._health.worked(asked)
        self._settle(outcomes, finished)
        self._under_way[cycle] = (
            ReservedSlots(len(jobs), in_processes) if here else ReservedSlots(0, len(jobs))
        )
        more = await self._claim_for_processes(cycle, identity, in_processes) if here and in_processes else []
        if failpoints.armed and (jobs or more):
            failpoints.reach("after_claim_before_start")
        del self._under_way[cycle]
        self._executor.claimed([*jobs, *more], identity)

    def _begin(self, ended: Sequence[Attempt], here: int, in_processes: int) -> int:
        """Begin a cycle that records these attempts and claims this many jobs. Return its number."""
        self.begun = cycle = self.begun + 1
        freed_here, freed_in_processes = _freed_by(ended)
        self._under_way[cycle] = ReservedSlots(
            max(0, here - freed_here), max(0, in_processes - freed_in_processes)
        )
        if ended:
            self._here.outcomes_sent(cycle)
            self._in_processes.outcomes_sent(cycle)
        return cycle

    async def _flush(
        self, cycle: int, identity: str, outcomes: Sequence[Outcome], group: SlotGroup, n: int
    ) -> tuple[Finished, Sequence[Claimed]]:
        if n:
            group.claim_sent()
        try:
            finished, jobs = await self._operations.acycle(
                identity, outcomes, tasks=group.tasks, n=n, queues=self._queues, polls=self._polls
            )
        except NOT_DONE:
            if n:
                group.note_change()
            raise
        if n:
            group.claim_answered(cycle, n, jobs)
        return finished, jobs

    async def _claim_for_processes(self, cycle: int, identity: str, n: int) -> list[Claimed]:
        """Claim jobs that run in processes.

        This claim is separate, because processes have slots of their own. Other jobs must not wait for these slots.
        """
        group = self._in_processes
        group.claim_sent()
        try:
            jobs = await self._operations.aclaim(
                identity, tasks=group.tasks, n=n, queues=self._queues, polls=self._polls
            )
        except NOT_DONE as error:
            group.drained = False
            self._look_at = min(self._look_at, monotonic() + self._health.failed(error))
            return []
        group.claim_answered(cycle, n, jobs)
        return jobs

    async def _write_logs(self, ended: Iterable[Attempt]) -> Collection[Attempt]:
        """Write the log lines of attempts that ended. Their outcomes carry the last reports, but no log lines.

        Return the attempts whose outcomes must wait, because the database refused their lines. One bad row may be the
        cause, so this is not treated as an outage, and the other outcomes are recorded.
        """
        reports = [(attempt, report) for attempt in ended if (report := attempt.context.take_logs())]
        if not reports:
            return ()
        try:
            answers = await self._operations.areport([report for _, report in reports])
        except (*NOT_DONE, asyncio.CancelledError) as error:
            put_back(reports)
            if isinstance(error, asyncio.CancelledError) or not is_refusal(error):
                raise
            self._operations.note_unrecorded([attempt.lease for attempt, _ in reports], error)
            return [attempt for attempt, _ in reports]
        for (_, report), answer in zip(reports, answers, strict=True):
            if answer == "lease lost":
                warn_of_lost_lines(report)
        return ()

    def _settle(self, outcomes: Iterable[tuple[Attempt, Outcome]], finished: Finished) -> None:
        accepted, refused = set(finished.accepted), set(finished.refused)
        changes = {Lease(change.id, change.token): change for change in finished.changes}
        instead = {outcome.lease: outcome for outcome in finished.instead}
        for attempt, outcome in outcomes:
            if attempt.lease in accepted or attempt.lease in refused:
                self._kept.pop(attempt, None)
                attempt.outcome = instead.get(attempt.lease, attempt.outcome)
                change = changes.get(attempt.lease)
                self._executor.recorded(attempt, change, accepted=attempt.lease in accepted)
            elif attempt not in self._kept:
                self._keep(attempt, outcome)

    def _keep(self, attempt: Attempt, outcome: Outcome) -> None:
        """Keep an outcome whose row is locked, or that the database refuses, or whose log lines it refuses."""
        self._kept[attempt] = outcome
        self._slots.free_early(attempt)
        if self._retrying is None or self._retrying.done():
            self._retrying = asyncio.create_task(self._retry_kept())

    async def _retry_kept(self) -> None:
        """Try again and again to record all kept outcomes together, until none is left. Cycles continue meanwhile."""
        while self._kept:
            await asyncio.sleep(max(RETRY_RECORD, RETRY_EACH * len(self._kept)))
            kept = [*self._kept.items()]
            try:
                unwritten = await self._write_logs([attempt for attempt, _ in kept])
                recording = [outcome for attempt, outcome in kept if attempt not in unwritten]
                finished = await self._operations.afinish(recording)
            except NOT_DONE as error:
                self._operations.note_unrecorded([attempt.lease for attempt, _ in kept], error)
            else:
                self._settle(kept, finished)


def _freed_by(ended: Sequence[Attempt]) -> tuple[int, int]:
    """How many slots these attempts free, here and in processes."""
    in_processes = sum(attempt.handler.run_in == "process" for attempt in ended)
    return len(ended) - in_processes, in_processes


def concerns(topic: str, queues: Queues) -> bool:
    """Whether a notification of this topic is about one of these queues."""
    if queues is None:
        return topic.startswith("queue/")
    return any(topic == queue_topic(queue) for queue in queues)
