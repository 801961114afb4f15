"""The app's methods that act on all jobs matching a filter, count them, or list what operators did."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, Unpack, get_args

from perdure.client.jobs import PAGE, optional_text
from perdure.errors import InvalidOption
from perdure.model.advice import advise
from perdure.model.job import Span
from perdure.model.json_text import read_json
from perdure.ops import audit
from perdure.ops.batch import CHUNK
from perdure.ops.bulk_actions import (
    BATCH,
    CANCEL,
    DELETE,
    REQUEUE,
    RUN_NOW,
    Batch,
    BulkAction,
    BulkProgress,
    Counts,
    look,
)
from perdure.ops.count import By, count_stretch
from perdure.ops.find import LAST, Found, longer
from perdure.plan.plan import Plan, async_method, pause, perform, sync_method
from perdure.request.filter import EVERY, Filter, Wanted, checked_filter
from perdure.request.options import filter_text, flag, number
from perdure.request.times import from_us

PATIENCE = 5.0
"""Seconds for which jobs that another transaction had locked are retried, after all other jobs are done."""
_PAUSE = 0.1

Progress: TypeAlias = Callable[[Counts], object]
"""Called after each batch with the counts of outcomes so far."""


class BulkResult(NamedTuple):
    """The result of an action on many jobs: the number of jobs by outcome, and the action's id in ``list_acts``."""

    counts: Counts
    act_id: int | None


class Act(NamedTuple):
    """Something an operator did to many jobs, a queue, a task or a workflow."""

    id: int
    at: datetime
    actor: str | None
    action: str
    subject: str
    detail: dict[str, Any]


class BulkMethods:
    """Methods of App for many jobs. Each method goes from the newest job to the oldest, a few hundred per transaction.

    Jobs enqueued after the call began are not included. If a call is interrupted, committed batches stay; call the
    method again to continue.
    """

    if TYPE_CHECKING:
        from perdure.store.store import Store

        @property
        def store(self) -> Store: ...

        @property
        def keep_keys_for(self) -> Span | None: ...

    def _cancel_jobs(
        self,
        *,
        all: bool = False,
        reason: str | None = None,
        by: str | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
        **wanted: Unpack[Wanted],
    ) -> Plan[BulkResult]:
        """Cancel all matching jobs that have not ended, including steps of workflows; running jobs are asked to stop.

        The conditions are those of ``list_jobs``. Without a condition, ``all`` must be True. ``dry_run``: count the
        expected outcomes and change nothing.
        """
        filter = _chosen("cancel_jobs", CANCEL, all, wanted)
        bulk = BulkProgress(
            "cancel_jobs", filter, Counts(), optional_text("reason", reason), optional_text("by", by)
        )
        return (yield from _carry_out(CANCEL, bulk, progress, dry_run))

    def _requeue_jobs(
        self,
        *,
        all: bool = False,
        keep_checkpoint: bool = False,
        reason: str | None = None,
        by: str | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
        **wanted: Unpack[Wanted],
    ) -> Plan[BulkResult]:
        """Start a new run of all matching jobs that failed or were canceled.

        Steps of workflows are not requeued, only counted: see ``requeue_workflow``. The same is true of jobs whose
        unique key now belongs to another active job.
        """
        filter = _chosen("requeue_jobs", REQUEUE, all, wanted)
        reason, by = optional_text("reason", reason), optional_text("by", by)
        keep = flag("keep_checkpoint", keep_checkpoint)
        bulk = BulkProgress("requeue_jobs", filter, Counts(), reason, by, keep)
        return (yield from _carry_out(REQUEUE, bulk, progress, dry_run))

    def _run_jobs_now(
        self,
        *,
        all: bool = False,
        by: str | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
        **wanted: Unpack[Wanted],
    ) -> Plan[BulkResult]:
        """Make all matching jobs that are scheduled or retrying due now."""
        filter = _chosen("run_jobs_now", RUN_NOW, all, wanted)
        bulk = BulkProgress("run_jobs_now", filter, Counts(), by=optional_text("by", by))
        return (yield from _carry_out(RUN_NOW, bulk, progress, dry_run))

    def _delete_jobs(
        self,
        *,
        all: bool = False,
        reason: str | None = None,
        by: str | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
        **wanted: Unpack[Wanted],
    ) -> Plan[BulkResult]:
        """Delete all matching jobs with their history; running jobs are asked to stop instead.

        Steps of workflows are not deleted, only counted.
        """
        filter = _chosen("delete_jobs", DELETE, all, wanted)
        bulk = BulkProgress(
            "delete_jobs", filter, Counts(), optional_text("reason", reason), optional_text("by", by)
        )
        bulk = bulk._replace(keep_key=self.keep_keys_for)
        return (yield from _carry_out(DELETE, bulk, progress, dry_run))

    def _count_jobs_by(self, by: By, **wanted: Unpack[Wanted]) -> Plan[dict[str | None, int]]:
        """The number of matching jobs by ``state``, ``queue``, ``task``, ``tenant`` or ``error_code``, highest first.

        The conditions and the states are those of ``list_jobs``.
        """
        if by not in get_args(By):
            raise InvalidOption(f"by must be one of {', '.join(get_args(By))}.")
        filter, numbers = checked_filter(wanted), Counter[str | None]()
        edge: str | None = LAST
        length = CHUNK
        while edge is not None:
            counted = yield from perform(count_stretch, filter, by, before=edge, length=length)
            numbers.update(counted.numbers)
            edge, length = counted.end, longer(length, filter)
        return dict(sorted(numbers.items(), key=lambda one: (-one[1], one[0] or "")))

    def _list_acts(
        self,
        *,
        action: str | None = None,
        actor: str | None = None,
        subject: str | None = None,
        before: int | None = None,
        limit: int = 50,
    ) -> Plan[list[Act]]:
        """A page of the actions of operators on many jobs, queues, tasks and workflows, newest first.

        For the next page give the last id as ``before``. Actions on a single job are in the history of that job.
        """
        number("limit", limit, 1, PAGE)
        rows = yield from perform(
            audit.list_acts,
            action=filter_text("action", action),
            actor=None if actor is None else optional_text("actor", actor),
            subject=None if subject is None else optional_text("subject", subject),
            before=audit.LAST if before is None else number("before", before, 0, audit.LAST),
            n=limit,
        )
        return [
            Act(row.id, from_us(row.at), row.actor, row.action, row.subject, _detail(row.detail))
            for row in rows
        ]

    cancel_jobs, acancel_jobs = sync_method(_cancel_jobs), async_method(_cancel_jobs)
    requeue_jobs, arequeue_jobs = sync_method(_requeue_jobs), async_method(_requeue_jobs)
    run_jobs_now, arun_jobs_now = sync_method(_run_jobs_now), async_method(_run_jobs_now)
    delete_jobs, adelete_jobs = sync_method(_delete_jobs), async_method(_delete_jobs)
    count_jobs_by, acount_jobs_by = sync_method(_count_jobs_by), async_method(_count_jobs_by)
    list_acts, alist_acts = sync_method(_list_acts), async_method(_list_acts)


def _chosen(name: str, action: BulkAction, all: bool, wanted: Wanted) -> Filter:
    """The validated filter. Raises InvalidOption if the filter does not fit this action."""
    filter = checked_filter(wanted)
    if filter == EVERY and not flag("all", all):
        raise InvalidOption(f"{name} needs a condition, such as queue=; for every job give all=True.")
    if filter != EVERY and flag("all", all):
        raise InvalidOption("all=True means every job: give conditions or all, not both.")
    if filter.state is not None and filter.state not in action.takes:
        sentence = f"{{{name}}} takes jobs that are {' or '.join(action.takes)}, not {filter.state}."
        raise InvalidOption(advise(sentence))
    return filter


def _carry_out(
    action: BulkAction, bulk: BulkProgress, progress: Progress | None, dry_run: bool
) -> Plan[BulkResult]:
    """Carry out the action on one range of ids after the other; then retry jobs that other transactions had locked."""
    report = progress or _ignore
    if not callable(report):
        raise InvalidOption("progress must be a function that takes the counts so far.")
    flag("dry_run", dry_run)
    held: list[Found] = []
    edge: str | None = LAST
    length = CHUNK
    while edge is not None:
        scan = yield from perform(look, bulk.filter, among=action.takes, before=edge, length=length)
        edge, length = scan.end, longer(length, bulk.filter)
        steps, jobs = _steps_apart(action, scan.jobs)
        bulk = _counted(bulk, Counts({"is_a_step": steps}))
        if dry_run:
            bulk = _counted(bulk, Counts(action.expected(job.state) for job in jobs))
            report(bulk.counts.copy())
        else:
            bulk, locked = yield from _in_batches(action, jobs, bulk, report)
            held += locked
    until = time.monotonic() + PATIENCE
    while held and time.monotonic() < until:
        yield from pause(_PAUSE)
        bulk, held = yield from _in_batches(action, held, bulk, report)
    return BulkResult(bulk.counts + Counts({"locked": len(held)}), bulk.act)


def _in_batches(action: BulkAction, jobs: list[Found], bulk: BulkProgress, report: Progress) -> Plan[Batch]:
    held: list[Found] = []
    for start in range(0, len(jobs), BATCH):
        bulk, locked = yield from perform(action.batch, jobs[start : start + BATCH], bulk)
        held += locked
        report(bulk.counts.copy())
    return Batch(bulk, held)


def _steps_apart(action: BulkAction, jobs: list[Found]) -> tuple[int, list[Found]]:
    if action.steps:
        return 0, jobs
    alone = [job for job in jobs if job.workflow is None]
    return len(jobs) - len(alone), alone


def _counted(bulk: BulkProgress, more: Counts) -> BulkProgress:
    return bulk._replace(counts=bulk.counts + more)


def _ignore(counts: Counts) -> None:
    pass


def _detail(text: str | None) -> dict[str, Any]:
    return {} if text is None else read_json(text, dict[str, Any])
