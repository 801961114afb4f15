"""Claims jobs for a worker.

A job is limited if its queue or its task has a limit on how many jobs run at once, see model/limits.py. Unlimited jobs
are claimed in one statement. For limited jobs, a query first chooses jobs that fit under their limits. Then the claim
names these jobs, and counts again under a lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from time import monotonic
from typing import NamedTuple, TypeVar

from perdure.model.job import Claimed
from perdure.model.limits import Group, Limits
from perdure.ops import claim as claim_ops
from perdure.ops import limits as limit_ops
from perdure.ops.claim import ClaimRequest, Claims
from perdure.ops.op import Operation
from perdure.plan.plan import Plan, perform
from perdure.store.store import Store
from perdure.worker.claim_window import ClaimWindowTracker
from perdure.worker.damaged_rows import DamagedRows
from perdure.worker.database_errors import OUT_OF_SERVICE, PERHAPS_REFUSED, is_refusal
from perdure.worker.split import split
from perdure.worker.sweeps import Sweeps

T = TypeVar("T")

CLAIM_ROUNDS = 5
"""The most rounds of one claim. A round that met expired jobs, or jobs outside its window, is followed by another. If
there are still too few jobs after the last round, the worker's next claim continues."""

SPARE = 3
"""After a limited claim that got too few jobs, the next one also names spare jobs: this many for each job that the
earlier claim asked for. Spare jobs are claimed in place of jobs that are locked or no longer due."""

MOST_CURSORS = 1_000
"""How many cursors are kept. If the first jobs of a group have keys whose limit is reached, the group is searched key
by key. Its cursor says where the next search begins."""

SEARCH_INTERVAL = 0.1
"""Seconds without a search for limited jobs after a search that found none to claim, while unlimited jobs fill all
slots. A worker with free slots searches at every claim, and so does one whose own limited job has ended."""

CHECK_INTERVAL = 1.0
"""Seconds between two checks whether limits were changed, if no notification of a change arrives."""


class Wanted(NamedTuple):
    """What a worker wants to claim: at most n jobs of these tasks, from these queues in this order.

    ``queues``: None means all queues.

    ``polls``: the worker claims again within a second, so jobs committed late can wait for the next full scan.
    """

    worker: str
    tasks: Sequence[str]
    n: int
    queues: Sequence[str] | None
    polls: bool = False
    limits: int = 0
    """The version of the limits by which the tasks were chosen."""

    def __bool__(self) -> bool:
        return self.n > 0 and bool(self.tasks) and self.queues != []


class Batch(list[Claimed]):
    """Claimed jobs, in order. ``more``: the next claim may find more, even if these are fewer than asked for."""

    def __init__(self, jobs: Iterable[Claimed] = (), *, more: bool = False) -> None:
        super().__init__(jobs)
        self.more = more

    def followed_by(self, others: Batch) -> Batch:
        return Batch([*self, *others], more=self.more or others.more)


class Claimer:
    """Claims jobs. Limited and unlimited jobs are claimed separately, and take turns to be claimed first."""

    def __init__(self, store: Store, damaged: DamagedRows, sweeps: Sweeps) -> None:
        self._damaged = damaged
        self._sweeps = sweeps
        self._remote = not store.embedded
        """Whether each statement costs a round trip, so that claim windows save time."""
        self._window_trackers: dict[tuple[tuple[str, ...], frozenset[str] | None], ClaimWindowTracker] = {}
        """The trackers by tasks and queues. Claims of different jobs do not share a tracker."""
        self._limits = Limits()
        self._check_at = 0.0
        """The first time, by the monotonic clock, at which an empty claim checks whether limits were changed."""
        self._limited_first: dict[tuple[str, ...], bool] = {}
        """Whether limited jobs were claimed first the last time, by the tasks of a slot group."""
        self._search_at: dict[tuple[str, ...], float] = {}
        """When to search for limited jobs before unlimited ones again, by tasks, on the monotonic clock."""
        self._cursors: dict[Group, str] = {}
        self._spare = 0
        """How many spare jobs the next limited claim names, see ``SPARE``."""
        self._sent: set[str] = set()
        """Limited jobs of claims that are under way."""

    def claim(self, wanted: Wanted) -> Plan[Batch]:
        request = yield from self.first_request(wanted)
        if request.limited is None:
            part = wanted._replace(tasks=request.tasks, limits=request.limits)
            batch = yield from self._claim_unlimited(part)
        else:
            batch = yield from self._take_limited(request)
        return (yield from self.rest(wanted, request, batch))

    def first_request(self, wanted: Wanted, ended: Sequence[str] = ()) -> Plan[ClaimRequest]:
        """The first request, which is either for limited or for unlimited jobs. ``rest`` claims the other kind.

        ``ended``: jobs whose outcomes are recorded together with this claim.
        """
        if not wanted or not self._limits_concern(wanted):
            return self._request(wanted._replace(limits=self._limits.version))
        part, turn = self._unlimited_part(wanted), tuple(wanted.tasks)
        waits = part.tasks and monotonic() < self._search_at.get(turn, 0.0)
        self._limited_first[turn] = not (waits or (self._limited_first.get(turn) and part.tasks))
        if self._limited_first[turn]:
            request = yield from self._limited_request(wanted, ended)
            if request.limited:
                return request
        return self._request(part)

    def rest(self, wanted: Wanted, first: ClaimRequest, batch: Batch) -> Plan[Batch]:
        """Claim the other kind of jobs, after the first request gave this batch."""
        if not wanted:
            return batch
        try:
            return (yield from self._rest(wanted, first, batch))
        except PERHAPS_REFUSED:
            if not batch:
                raise
            return Batch(batch, more=True)  # keep the jobs that were claimed

    def _rest(self, wanted: Wanted, first: ClaimRequest, batch: Batch) -> Plan[Batch]:
        left = wanted.n - len(batch)
        if first.limited is not None and left > 0:
            part = self._unlimited_part(wanted._replace(n=left))
            batch = batch.followed_by((yield from self._claim_unlimited(part)))
        elif left > 0 and self._limits_concern(wanted):
            request = yield from self._limited_request(wanted._replace(n=left))
            batch = batch.followed_by((yield from self._take_limited(request)))
        if not batch and (yield from self._refresh(at_once=not wanted.polls)):
            return (yield from self.claim(wanted))
        return batch

    def _unlimited_part(self, wanted: Wanted) -> Wanted:
        """What is wanted, without limited tasks.

        Its tasks and its version come from the same limits, because newer limits may be read before the claim is sent.
        """
        limits = self._limits
        tasks = [task for task in wanted.tasks if task not in limits.tasks]
        return wanted._replace(tasks=tasks, limits=limits.version)

    def _limits_concern(self, wanted: Wanted) -> bool:
        """Whether some of these jobs may be limited."""
        tasks, queues = self._limits.tasks, self._limits.queues
        if any(task in tasks for task in wanted.tasks):
            return True
        return bool(queues) and (wanted.queues is None or any(queue in queues for queue in wanted.queues))

    def is_limited(self, queue: str, task: str) -> bool:
        return self._limits.limit(queue, task)

    def limited_job_ended(self) -> None:
        """Search for limited jobs with the next claim: a slot of a limit is free."""
        self._search_at.clear()

    def limits_may_have_changed(self) -> None:
        """Check the limits after the next empty claim. A claim is empty if the limits changed and were not read yet."""
        self._check_at = 0.0

    def forget_limits(self) -> None:
        """Forget the limits, so that they are read again.

        After a restore of the database, the same version number may stand for other limits.
        """
        self._limits = Limits()
        self._check_at = 0.0

    def _refresh(self, *, at_once: bool) -> Plan[bool]:
        """Read the limits if they were changed, and return whether they were.

        Checks once in ``CHECK_INTERVAL``. ``at_once``: check now in any case, because no poll follows soon.
        """
        now = monotonic()
        if now < self._check_at and not at_once:
            return False
        self._check_at = now + CHECK_INTERVAL
        if (yield from perform(limit_ops.read_version)) == self._limits.version:
            return False
        self._limits = yield from perform(limit_ops.read_limits)
        return True

    def _claim_unlimited(self, wanted: Wanted) -> Plan[Batch]:
        batch = Batch()
        for _ in range(CLAIM_ROUNDS):
            request = self._request(wanted._replace(n=wanted.n - len(batch)))
            if not request:
                return Batch(batch)
            asked_at = monotonic()
            try:
                claims = yield from self._take(claim_ops.claim, request)
            except OUT_OF_SERVICE:
                if not batch:
                    raise
                return Batch(batch, more=True)  # keep the jobs that were claimed
            again = yield from self._learn(wanted, request, claims, asked_at)
            batch = Batch([*batch, *claims.jobs], more=claims.more or again)
            if claims.locked and not batch:
                claims = yield from self._take(claim_ops.claim_skipping_locked, request)
                return Batch(claims.jobs)
            if not _claims_again(batch, claims, again):
                break
        return batch

    def answered(self, wanted: Wanted, request: ClaimRequest, claims: Claims, asked_at: float) -> Plan[Batch]:
        """Take the answer to the first request, which was sent together with outcomes; claim again if need be."""
        if request.limited is not None:
            return self._limited_batch(request, claims.jobs)
        again = yield from self._learn(wanted, request, claims, asked_at)
        batch = Batch(claims.jobs, more=claims.more or again)
        if not _claims_again(batch, claims, again):
            return batch
        part = wanted._replace(tasks=request.tasks, n=wanted.n - len(batch), limits=request.limits)
        rest = yield from self._claim_unlimited(part)
        return Batch([*batch, *rest], more=rest.more)

    def _limited_request(self, wanted: Wanted, ended: Sequence[str] = ()) -> Plan[ClaimRequest]:
        """A request for limited jobs that fit under their limits now."""
        limits = self._limits  # newer limits may be read before the request is sent
        request = ClaimRequest(wanted.worker, wanted.tasks, wanted.n, wanted.queues, limits=limits.version)
        fitting = yield from self._find_fitting(request, limits, ended)
        if fitting.supersede:
            with suppress(*PERHAPS_REFUSED):
                if (yield from self._sweeps.supersede()):
                    fitting = yield from self._find_fitting(request, limits, ended)
        if not fitting.jobs:
            self._search_at[tuple(wanted.tasks)] = monotonic() + SEARCH_INTERVAL
        if len(self._cursors) > MOST_CURSORS:
            self._cursors.clear()
        self._cursors.update(fitting.cursors)
        jobs = [*fitting.jobs, *fitting.spare]
        return request._replace(n=len(fitting.jobs), limited=[job.id for job in jobs])

    def _find_fitting(
        self, request: ClaimRequest, limits: Limits, ended: Sequence[str]
    ) -> Plan[limit_ops.Fitting]:
        return perform(
            limit_ops.find_fitting,
            request,
            limits,
            self._cursors,
            spare=self._spare,
            ended=ended,
            sent=self._sent,
            passed_over=self._damaged.passed_over(),
        )

    def sending(self, request: ClaimRequest, plan: Plan[T]) -> Plan[T]:
        """Run a plan that sends this request. Meanwhile other claims of this worker do not choose its limited jobs."""
        limited = (request.limited or ())[: request.n]
        self._sent.update(limited)
        try:
            return (yield from plan)
        finally:
            self._sent.difference_update(limited)

    def _limited_batch(self, request: ClaimRequest, jobs: Sequence[Claimed]) -> Batch:
        if len(jobs) == request.n:
            self._spare //= 2
            return Batch(jobs)
        # Other workers have claimed or locked some of the jobs. Claim again at once, now with spare jobs, unless this
        # claim had spare jobs and got nothing.
        first, self._spare = self._spare == 0, SPARE * request.n
        return Batch(jobs, more=first or bool(jobs))

    def _take_limited(self, request: ClaimRequest) -> Plan[Batch]:
        if not request.limited:
            return Batch()
        try:
            claims = yield from self.sending(request, perform(claim_ops.claim, request))
            return self._limited_batch(request, claims.jobs)
        except PERHAPS_REFUSED as error:
            if not is_refusal(error):
                raise
        parts = yield from split(
            request.limited[: request.n],
            lambda some: perform(claim_ops.claim, request._replace(limited=some, n=len(some))),
        )
        if parts.outage is None:
            yield from self._damaged.leave_out(parts.refused)
        elif not parts.done:
            raise parts.outage
        return Batch([job for claims in parts.done for job in claims.jobs])

    def _take(self, claim: Operation[[ClaimRequest], Claims], request: ClaimRequest) -> Plan[Claims]:
        try:
            return (yield from perform(claim, request))
        except PERHAPS_REFUSED as error:
            if not is_refusal(error):
                raise
        return (yield from self._damaged.claim(request))

    def _learn(self, wanted: Wanted, request: ClaimRequest, claims: Claims, asked_at: float) -> Plan[bool]:
        """Derive the next claim's window from this claim. Return whether to claim again, for jobs before the window."""
        tracker = self._window_tracker(request.tasks, request.queues)
        again = tracker.learn(request, claims, took=monotonic() - asked_at, polls=wanted.polls)
        if claims.expired:
            self._sweeps.expired += claims.expired
            # Cancel a page of expired jobs, because there are probably more. If this fails, keep the claimed jobs: the
            # sweeper also cancels expired jobs.
            with suppress(*PERHAPS_REFUSED):
                yield from self._sweeps.expire_page()
        return again

    def _request(self, wanted: Wanted) -> ClaimRequest:
        """The request for unlimited jobs."""
        worker, tasks, n, queues, polls, limits = wanted
        asked = tasks if queues != [] else ()
        window = self._window_tracker(asked, queues).window(queues, polls=polls)
        return ClaimRequest(worker, asked, n, queues, window, limits)

    def _window_tracker(self, tasks: Sequence[str], queues: Sequence[str] | None) -> ClaimWindowTracker:
        """The tracker for these tasks and queues.

        Each slot group has its own tracker, because a full scan for one group must not delay that for another.
        """
        key = (tuple(tasks), None if queues is None else frozenset(queues))
        if key not in self._window_trackers:
            self._window_trackers[key] = ClaimWindowTracker(enabled=self._remote)
        return self._window_trackers[key]


def _claims_again(batch: Batch, claims: Claims, again: bool) -> bool:
    """Whether to claim again at once. If any job was claimed, jobs before the window and locked jobs can wait."""
    return batch.more and not (batch and (again or claims.locked))
