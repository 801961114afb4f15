"""Everything a worker does to the database, as methods: register, heartbeat, claim, finish, report, rescue, expire."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from time import monotonic

from perdure.errors import InvalidOption, RowsLocked, StoreReadOnly
from perdure.model.job import Claimed, Instant, Lease, Span
from perdure.model.lifecycle import Change, Outcome, Report
from perdure.ops import claim as claim_ops
from perdure.ops import finish as finish_ops
from perdure.ops import report as report_ops
from perdure.ops import sweep as sweep_ops
from perdure.ops import worker as worker_ops
from perdure.ops.claim import ClaimRequest, Claims
from perdure.ops.finish import Finished
from perdure.ops.op import Operation
from perdure.ops.report import JobReport, ReportAnswer
from perdure.ops.worker import Beat
from perdure.plan.plan import Plan, async_method, perform, sync_method
from perdure.store.store import Store
from perdure.worker.claim_window import ClaimWindowTracker
from perdure.worker.clock_watch import ClockWatch
from perdure.worker.damaged_rows import DamagedRows
from perdure.worker.database_errors import DAMAGED, FORBIDDEN, OUT_OF_SERVICE, PERHAPS_REFUSED, is_refusal
from perdure.worker.recorder import Recorder
from perdure.worker.split import split
from perdure.worker.sweeps import Sweeps

CLAIM_ROUNDS = 5
"""How often a claim that met expired jobs is repeated. It may return too few jobs: another one follows."""

Queues = Sequence[str] | Mapping[str, float] | None
"""Strict order, weights, or every queue."""


class Batch(list[Claimed]):
    """Claimed jobs, in order. ``more``: the next claim may find more, even if these are fewer than asked for."""

    def __init__(self, jobs: Iterable[Claimed] = (), *, more: bool = False) -> None:
        super().__init__(jobs)
        self.more = more


def _claims_again(batch: Batch, claims: Claims, again: bool) -> bool:
    """Whether to claim again at once: not with jobs in hand if older ones may precede the window or are locked."""
    return batch.more and not (batch and (again or claims.locked))


def _report_part(numbered: Sequence[tuple[int, JobReport]]) -> Plan[list[tuple[int, ReportAnswer]]]:
    answers = yield from perform(report_ops.report, [report for _, report in numbered])
    return [*zip((number for number, _ in numbered), answers, strict=True)]


class WorkerOperations:
    """The operations that a worker performs, with what it has learned from them."""

    def __init__(self, store: Store, *, rng: random.Random | None = None) -> None:
        self.store = store
        self._rng = rng or random.Random()
        self._watch = ClockWatch()
        self._remote = not store.embedded
        """Whether a statement costs a round trip, and time before its first row."""
        self._window_trackers: dict[tuple[tuple[str, ...], frozenset[str] | None], ClaimWindowTracker] = {}
        """By tasks and queues: several workers in one process have their own."""
        self._damaged = DamagedRows()
        self._recorder = Recorder(self._damaged, self._rng, shortens=self._remote)
        self.sweeps = Sweeps(self._damaged, self._rng)

    def _register(
        self,
        worker: str,
        *,
        name: str,
        lease: Span,
        tasks: Sequence[str] = (),
        queues: Queues = None,
        slots: int = 1,
    ) -> Plan[Mapping[str, str]]:
        """Register a worker; return the configs of tasks."""
        served = None if queues is None else list(queues)
        return (
            yield from perform(
                worker_ops.register, worker, name=name, lease=lease, tasks=tasks, queues=served, slots=slots
            )
        )

    def _heartbeat(self, worker: str) -> Plan[Beat]:
        """Renew the worker's lease and read back what it is believed to run."""
        return (yield from perform(worker_ops.heartbeat, worker))

    def _peek(self, worker: str) -> Plan[Beat]:
        """Read back what the worker is believed to run, and nothing else."""
        return (yield from perform(worker_ops.peek, worker))

    def _retire(self, worker: str) -> Plan[None]:
        """End a worker's registration."""
        yield from perform(worker_ops.retire, worker)

    def _lead(self, name: str, worker: str, *, lease: Span) -> Plan[bool]:
        """Whether this worker is the elected one."""
        return (yield from perform(worker_ops.lead, name, worker, lease=lease))

    def _claim(
        self, worker: str, *, tasks: Sequence[str], n: int, queues: Queues = None, polls: bool = False
    ) -> Plan[Batch]:
        """Claim at most n due jobs, in order. Expired jobs that it meets are canceled and do not count.

        ``polls``: the caller claims again within a second, so jobs committed late can wait for the next full scan.
        """
        order = self._order(queues)
        batch = Batch()
        for _ in range(CLAIM_ROUNDS):
            request = self._claim_request(worker, tasks, n - len(batch), order, polls=polls)
            if not request:
                return Batch(batch)
            asked_at = monotonic()
            try:
                claims = yield from self._take(claim_ops.claim, request)
            except OUT_OF_SERVICE:
                if not batch:
                    raise
                return Batch(batch, more=True)  # keep what was claimed
            again = yield from self._learn(request, claims, since=asked_at, polls=polls)
            batch = Batch([*batch, *claims.jobs], more=claims.more or again)
            if claims.locked and not batch:
                claims = yield from self._take(claim_ops.claim_skipping_locked, request)
                return Batch(claims.jobs)
            if not _claims_again(batch, claims, again):
                break
        return batch

    def _take(self, claim: Operation[[ClaimRequest], Claims], request: ClaimRequest) -> Plan[Claims]:
        try:
            return (yield from perform(claim, request))
        except PERHAPS_REFUSED as error:
            if not is_refusal(error):
                raise
        return (yield from self._damaged.claim(request))

    def _learn(self, request: ClaimRequest, claims: Claims, *, since: float, polls: bool) -> Plan[bool]:
        """Derive the next claim's window from this one; return whether to claim again before the window.

        If it met expired jobs, cancel a page of them: there are probably more.
        """
        tracker = self._window_tracker(request.tasks, request.queues)
        again = tracker.learn(request, claims, took=monotonic() - since, polls=polls)
        if claims.expired:
            self.sweeps.expired += claims.expired
            # If it fails, the sweeper will do it: what was claimed must not be lost.
            with suppress(*PERHAPS_REFUSED):
                yield from self.sweeps.expire_page()
        return again

    def _claim_request(
        self, worker: str, tasks: Sequence[str], n: int, order: Sequence[str] | None, *, polls: bool
    ) -> ClaimRequest:
        asked = tasks if order != [] else ()
        window = self._window_tracker(asked, order).window(order, polls=polls)
        return ClaimRequest(worker, asked, n, order, window)

    def _window_tracker(self, tasks: Sequence[str], queues: Sequence[str] | None) -> ClaimWindowTracker:
        """One for each slot group of each worker: a full scan by one must not delay the other's."""
        key = (tuple(tasks), None if queues is None else frozenset(queues))
        if key not in self._window_trackers:
            self._window_trackers[key] = ClaimWindowTracker(enabled=self._remote)
        return self._window_trackers[key]

    def _finish(self, outcomes: Sequence[Outcome], *, last: bool = False) -> Plan[Finished]:
        """Record outcomes; one that is recorded already counts as accepted.

        One whose row stays locked, or that the database does not take, is in neither list and must be recorded again.
        ``last``: there is no later try, so record it without what the database does not take.
        """
        return (yield from self._recorder.record(outcomes, last=last))

    def note_unrecorded(self, leases: Sequence[Lease], error: Exception) -> None:
        """The outcomes of these attempts are kept to be recorded again."""
        self._damaged.note_unrecorded(dict.fromkeys(leases, error))

    def _cycle(
        self,
        worker: str,
        outcomes: Sequence[Outcome],
        *,
        tasks: Sequence[str],
        n: int,
        queues: Queues = None,
        polls: bool = False,
    ) -> Plan[tuple[Finished, Batch]]:
        """Record outcomes and take the next jobs in one transaction."""
        order = self._order(queues)
        request = self._claim_request(worker, tasks, n, order, polls=polls)
        asked_at = monotonic()
        try:
            finished, claims = yield from perform(
                finish_ops.cycle,
                outcomes,
                jitter=self._rng.random,
                claim=request,
                failing=self._recorder.failing,
            )
        except RowsLocked:
            return (yield from self._record_and_claim(outcomes, worker, tasks, n, order, skip_locked=True))
        except PERHAPS_REFUSED as error:
            if not is_refusal(error):
                raise
            # The cause is an outcome, or a row that the claim met: in two transactions, neither stops the other.
            return (yield from self._record_and_claim(outcomes, worker, tasks, n, order))
        again = yield from self._learn(request, claims, since=asked_at, polls=polls)
        try:
            finished = yield from self._recorder.complete(outcomes, finished)
        except OUT_OF_SERVICE:
            if not claims.jobs:
                raise
            finished = finished._replace(refused=[])  # to be recorded again
        self._damaged.note_recorded(finished)
        batch = Batch(claims.jobs, more=claims.more or again)
        if _claims_again(batch, claims, again):
            left = n - len(batch)
            rest = yield from self._claim_after([*outcomes, *batch], worker, tasks, left, order, polls=polls)
            batch = Batch([*batch, *rest], more=rest.more)
        return finished, batch

    def _record_and_claim(
        self,
        outcomes: Sequence[Outcome],
        worker: str,
        tasks: Sequence[str],
        n: int,
        order: Sequence[str] | None,
        *,
        skip_locked: bool = False,
    ) -> Plan[tuple[Finished, Batch]]:
        """A cycle in two transactions. If no outcome is recorded, a claimed job proves that it is no outage."""
        try:
            finished = yield from self._recorder.record(outcomes, skip_locked=skip_locked)
        except PERHAPS_REFUSED as error:
            if not is_refusal(error):
                raise
            batch = yield from self._claim(worker, tasks=tasks, n=n, queues=order)
            if not batch:
                raise
            return Finished([], []), batch
        return finished, (yield from self._claim_after(outcomes, worker, tasks, n, order))

    def _claim_after(
        self,
        done: Sequence[object],
        worker: str,
        tasks: Sequence[str],
        n: int,
        order: Sequence[str] | None,
        *,
        polls: bool = False,
    ) -> Plan[Batch]:
        """Claim for the rest of a cycle. If this fails, what is done counts: the next cycle claims again."""
        try:
            return (yield from self._claim(worker, tasks=tasks, n=n, queues=order, polls=polls))
        except OUT_OF_SERVICE:
            if not done:
                raise
            return Batch(more=n > 0)

    def _report(self, reports: Sequence[JobReport]) -> Plan[list[ReportAnswer]]:
        """Store the reports of running jobs. What the database refuses is dropped."""
        if not reports:
            return []
        try:
            return (yield from perform(report_ops.report, reports))
        except PERHAPS_REFUSED as error:
            if not is_refusal(error):
                raise
            if isinstance(error, StoreReadOnly) and error.code == FORBIDDEN:
                # Waiting does not grant rights, and outcomes must not wait for log lines.
                for one in reports:
                    self._damaged.unreportable(one.lease.job, error)
                return ["ok" for _ in reports]
        serves = self._damaged.others_recorded_since(one.lease for one in reports)
        parts = yield from split([*enumerate(reports)], _report_part, serves=serves)
        if parts.outage is not None:
            raise parts.outage
        for (_, one), refusal in parts.refused:
            self._damaged.unreportable(one.lease.job, refusal)
        answers: list[ReportAnswer] = ["ok"] * len(reports)
        for number, answer in (one for part in parts.done for one in part):
            answers[number] = answer
        return answers

    def _save(self, report: JobReport) -> Plan[ReportAnswer]:
        """Store a checkpoint with the other reports of its job. If refused, only the others are dropped."""
        checkpoint = JobReport(report.lease, Report(checkpoint=report.report.checkpoint))
        try:
            (answer,) = yield from perform(report_ops.report, [report])
        except (StoreReadOnly, *DAMAGED) as error:
            # A database that is read-only refuses everything, and the call has waited for it already.
            read_only = isinstance(error, StoreReadOnly) and error.code != FORBIDDEN
            if read_only or report == checkpoint:
                raise
            (answer,) = yield from perform(report_ops.report, [checkpoint])
            self._damaged.unreportable(report.lease.job, error)
        return answer

    def _retire_silent(self, *, wanted: Callable[[], bool] = lambda: True) -> Plan[None]:
        """Retire workers whose lease has expired. ``wanted``: whether to, asked after each wait for the database."""
        yield from perform(sweep_ops.retire_silent, steady_since=self._steady_since(), wanted=wanted)

    def _rescue(self, *, page: int = 500, silent: bool = True) -> Plan[list[Change]]:
        """Free the jobs of workers that fell silent; without ``silent`` only those of workers retired already."""
        if silent:
            yield from self._retire_silent()
        return (yield from self.sweeps.rescue(page=page))

    def _expire(self, *, page: int = 500) -> Plan[int]:
        """Cancel every job that was not started in time."""
        return (yield from self.sweeps.expire(page=page))

    register, aregister = sync_method(_register), async_method(_register)
    heartbeat, aheartbeat = sync_method(_heartbeat), async_method(_heartbeat)
    lead, alead = sync_method(_lead), async_method(_lead)
    peek, apeek = sync_method(_peek), async_method(_peek)
    retire, aretire = sync_method(_retire), async_method(_retire)
    claim, aclaim = sync_method(_claim), async_method(_claim)
    finish, afinish = sync_method(_finish), async_method(_finish)
    cycle, acycle = sync_method(_cycle), async_method(_cycle)
    report, areport = sync_method(_report), async_method(_report)
    retire_silent, aretire_silent = sync_method(_retire_silent), async_method(_retire_silent)
    rescue, arescue = sync_method(_rescue), async_method(_rescue)
    expire, aexpire = sync_method(_expire), async_method(_expire)

    def _steady_since(self) -> Instant | None:
        """On SQLite, leases are judged by this host's clock, which may have been set. PostgreSQL uses its own."""
        return self._watch.steady_since() if self.store.embedded else None

    def _order(self, queues: Queues) -> list[str] | None:
        """The order of queues for one claim. Weights draw it anew each time: they are the odds of being first."""
        if queues is None:
            return None
        if isinstance(queues, Mapping):
            if not all(type(weight) in (int, float) and 0 < weight < math.inf for weight in queues.values()):
                raise InvalidOption("The weight of a queue must be a finite number above 0.")
            return sorted(queues, key=lambda queue: self._rng.expovariate(queues[queue]))
        return list(dict.fromkeys(queues))
