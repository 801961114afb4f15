"""A worker's operations on the database, as methods: register, heartbeat, claim, finish, report, rescue, expire."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from time import monotonic

from perdure.errors import InvalidOption, RowsLocked, StoreReadOnly
from perdure.model.job import Instant, Lease, Span
from perdure.model.lifecycle import Change, Outcome, Report
from perdure.ops import finish as finish_ops
from perdure.ops import report as report_ops
from perdure.ops import worker as worker_ops
from perdure.ops.claim import ClaimRequest, Claims
from perdure.ops.finish import Finished
from perdure.ops.report import JobReport, ReportAnswer
from perdure.ops.worker import Beat
from perdure.plan.plan import Plan, async_method, perform, sync_method
from perdure.store.store import Store
from perdure.worker.claimer import Batch, Claimer, Wanted
from perdure.worker.clock_watch import ClockWatch
from perdure.worker.damaged_rows import DamagedRows
from perdure.worker.database_errors import DAMAGED, FORBIDDEN, OUT_OF_SERVICE, PERHAPS_REFUSED, is_refusal
from perdure.worker.recorder import Recorder
from perdure.worker.split import split
from perdure.worker.sweeps import Sweeps

Queues = Sequence[str] | Mapping[str, float] | None
"""The queues to claim from: names in strict order, names with weights, or None for every queue."""


def _report_part(numbered: Sequence[tuple[int, JobReport]]) -> Plan[list[tuple[int, ReportAnswer]]]:
    answers = yield from perform(report_ops.report, [report for _, report in numbered])
    return [*zip((number for number, _ in numbered), answers, strict=True)]


class WorkerOperations:
    """The operations that a worker performs, and the state that it derives from their results."""

    def __init__(self, store: Store, *, rng: random.Random | None = None) -> None:
        self.store = store
        self._rng = rng or random.Random()
        self._watch = ClockWatch()
        self._damaged = DamagedRows()
        self._recorder = Recorder(self._damaged, self._rng, shortens=not store.embedded)
        self.sweeps = Sweeps(self._damaged, self._rng)
        self._claimer = Claimer(store, self._damaged, self.sweeps)

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
        """Renew the worker's lease, and read which jobs the database believes it runs."""
        return (yield from perform(worker_ops.heartbeat, worker))

    def _peek(self, worker: str) -> Plan[Beat]:
        """Read which jobs the database believes the worker runs. The lease is not renewed."""
        return (yield from perform(worker_ops.peek, worker))

    def _retire(self, worker: str) -> Plan[None]:
        """End a worker's registration."""
        yield from perform(worker_ops.retire, worker)

    def _lead(self, name: str, worker: str, *, lease: Span) -> Plan[bool]:
        """Try to become, or stay, the elected worker. Return whether this worker is elected."""
        return (yield from perform(worker_ops.lead, name, worker, lease=lease))

    def _claim(
        self, worker: str, *, tasks: Sequence[str], n: int, queues: Queues = None, polls: bool = False
    ) -> Plan[Batch]:
        """Claim at most n due jobs, in order. Expired jobs that the claim finds are canceled and do not count.

        ``polls``: the caller claims again within a second, so jobs committed late can wait for the next full scan.
        """
        return (yield from self._claimer.claim(Wanted(worker, tasks, n, self._order(queues), polls)))

    def is_limited(self, queue: str, task: str) -> bool:
        """Whether a limit applies to jobs of this task in this queue."""
        return self._claimer.is_limited(queue, task)

    def limits_may_have_changed(self) -> None:
        """Read the limits again if the next claim finds no jobs."""
        self._claimer.limits_may_have_changed()

    def limited_job_ended(self) -> None:
        """Search for limited jobs with the next claim."""
        self._claimer.limited_job_ended()

    def forget_limits(self) -> None:
        """Forget the limits, because the worker has registered anew."""
        self._claimer.forget_limits()

    def _finish(self, outcomes: Sequence[Outcome], *, last: bool = False) -> Plan[Finished]:
        """Record outcomes. An outcome that is recorded already counts as accepted.

        An outcome whose row stays locked, or that the database cannot store, is neither accepted nor refused, and must
        be recorded again. ``last``: there is no later try, so record a substitute that the database can store.
        """
        return (yield from self._recorder.record(outcomes, last=last))

    def note_unrecorded(self, leases: Sequence[Lease], error: Exception) -> None:
        """Note that the outcomes of these attempts could not be recorded. They are kept and retried."""
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
        """Record outcomes and claim the next jobs in one transaction."""
        wanted = Wanted(worker, tasks, n, self._order(queues), polls)
        try:
            request = yield from self._claimer.first_request(wanted, [one.lease.job for one in outcomes])
        except PERHAPS_REFUSED:
            if not outcomes:
                raise
            # Record the outcomes, although the search for limited jobs failed.
            wanted = wanted._replace(n=0)
            request = ClaimRequest(worker, (), 0)
        asked_at = monotonic()
        try:
            finished, claims = yield from self._claimer.sending(request, self._send_cycle(outcomes, request))
        except RowsLocked:
            return (yield from self._record_and_claim(outcomes, wanted, skip_locked=True))
        except PERHAPS_REFUSED as error:
            if not is_refusal(error) or self._damaged.refuses_cycle(outcomes):
                raise
            if outcomes or request.limited is not None:
                # The cause is either an outcome or a claimed row. In two transactions, only one of them fails.
                return (yield from self._record_and_claim(outcomes, wanted))
            finished, claims = Finished([], []), (yield from self._damaged.claim(request))
        try:
            finished = yield from self._recorder.complete(outcomes, finished)
        except OUT_OF_SERVICE:
            if not claims.jobs:
                raise
            finished = finished._replace(refused=[])  # these outcomes are recorded again
        self._damaged.note_recorded(finished)
        batch = Batch(claims.jobs, more=True)
        try:
            batch = yield from self._claimer.answered(wanted, request, claims, asked_at)
            batch = yield from self._claimer.rest(wanted, request, batch)
        except OUT_OF_SERVICE:
            if not (outcomes or batch):
                raise
        return finished, batch

    def _send_cycle(
        self, outcomes: Sequence[Outcome], request: ClaimRequest
    ) -> Plan[tuple[Finished, Claims]]:
        failing, jitter = self._recorder.failing, self._rng.random
        return (yield from perform(finish_ops.cycle, outcomes, jitter=jitter, claim=request, failing=failing))

    def _record_and_claim(
        self, outcomes: Sequence[Outcome], wanted: Wanted, *, skip_locked: bool = False
    ) -> Plan[tuple[Finished, Batch]]:
        """Do a cycle in two transactions. If recording fails but a job is claimed, this is not an outage."""
        try:
            finished = yield from self._recorder.record(outcomes, skip_locked=skip_locked)
        except PERHAPS_REFUSED as error:
            if not is_refusal(error) or self._damaged.refuses_claims:
                raise
            batch = yield from self._claimer.claim(wanted._replace(polls=False))
            if not batch:
                raise
            return Finished([], []), batch
        try:
            return finished, (yield from self._claimer.claim(wanted._replace(polls=False)))
        except OUT_OF_SERVICE:
            # Return the recorded outcomes, although the claim failed: the next cycle claims again.
            if not outcomes:
                raise
            return finished, Batch(more=wanted.n > 0)

    def _report(self, reports: Sequence[JobReport]) -> Plan[list[ReportAnswer]]:
        """Store the reports of running jobs. Reports that the database refuses are dropped."""
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
        """Store a checkpoint and the other reports of its job. If they are refused, store only the checkpoint."""
        checkpoint = JobReport(report.lease, Report(checkpoint=report.report.checkpoint))
        try:
            (answer,) = yield from perform(report_ops.report, [report])
        except (StoreReadOnly, *DAMAGED) as error:
            # A read-only database refuses every write, and the call has already waited for it.
            read_only = isinstance(error, StoreReadOnly) and error.code != FORBIDDEN
            if read_only or report == checkpoint:
                raise
            (answer,) = yield from perform(report_ops.report, [checkpoint])
            self._damaged.unreportable(report.lease.job, error)
        return answer

    def _retire_silent(self, *, sweeper: str = "", wanted: Callable[[], bool] = lambda: True) -> Plan[None]:
        """Retire workers whose lease has expired, but not the ``sweeper`` itself.

        ``wanted``: whether to retire them; called after each wait for the database.
        """
        since = self._steady_since()
        yield from self.sweeps.retire_silent(sweeper=sweeper, steady_since=since, wanted=wanted)

    def _rescue(self, *, page: int = 500, silent: bool = True) -> Plan[list[Change]]:
        """Free the jobs of workers that fell silent.

        Without ``silent``, free only the jobs of workers that are retired already.
        """
        if silent:
            yield from self._retire_silent()
        return (yield from self.sweeps.rescue(page=page))

    def _expire(self, *, page: int = 500) -> Plan[int]:
        """Cancel every job that was not started in time."""
        return (yield from self.sweeps.expire(page=page))

    def _supersede(self) -> Plan[int]:
        """Cancel the jobs that newer ones replace; return how many."""
        return (yield from self.sweeps.supersede())

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
    supersede, asupersede = sync_method(_supersede), async_method(_supersede)

    def _steady_since(self) -> Instant | None:
        """When this host's clock was last set. None on PostgreSQL, which judges leases by its own clock."""
        return self._watch.steady_since() if self.store.embedded else None

    def _order(self, queues: Queues) -> list[str] | None:
        """The order of queues for one claim.

        With weights, the order is random each time: a weight is the odds of being first.
        """
        if queues is None:
            return None
        if isinstance(queues, Mapping):
            if not all(type(weight) in (int, float) and 0 < weight < math.inf for weight in queues.values()):
                raise InvalidOption("The weight of a queue must be a finite number above 0.")
            return sorted(queues, key=lambda queue: self._rng.expovariate(queues[queue]))
        return list(dict.fromkeys(queues))
