"""Every verb of the app that acts on all jobs that fit a filter, or counts them, and what was done so far by whom."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, Unpack, get_args

import msgspec

from perdure.errors import InvalidOption
from perdure.filter import EVERY, Filter, Wanted, checked_filter
from perdure.model.advice import advise
from perdure.model.job import Later, Span
from perdure.moments import moment
from perdure.ops import acts
from perdure.ops.batch import CHUNK
from perdure.ops.count import By, count_stretch
from perdure.ops.find import LAST, Found, longer
from perdure.ops.many import BATCH, CANCEL, DELETE, REQUEUE, RUN_NOW, Batch, Counts, Doing, Verb, look
from perdure.options import filter_text, flag, number
from perdure.store.plan import Plan, blocking, pause, perform, waiting
from perdure.verbs import PAGE, said

PATIENCE = 5.0
"""Seconds for which jobs that somebody holds are asked for again, after all others."""
_PAUSE = 0.1

Progress: TypeAlias = Callable[[Counts], object]
"""Called after each batch with what came of the jobs so far."""


class Acted(NamedTuple):
    """What came of an act on many jobs: how many of each outcome, and under which id of ``list_acts`` it is told."""

    counts: Counts
    act: int | None


class Act(NamedTuple):
    """What an operator did to many jobs, or to something that is no job."""

    id: int
    at: datetime
    actor: str | None
    verb: str
    subject: str
    detail: dict[str, Any]


class ManyVerbs:
    """Mixed into App. Each verb goes from the newest job to the oldest, in transactions of a few hundred jobs.

    What comes meanwhile is newer and not met. Whatever stops the act, what was done is done: called again, it goes on.
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
    ) -> Plan[Acted]:
        """Cancel all jobs that fit and have not ended; those that run are asked to stop, and steps are canceled, too.

        The conditions are those of ``list_jobs``; without any, ``all`` must be True. ``dry_run`` only counts.
        """
        filter = _chosen("cancel_jobs", CANCEL, all, wanted)
        doing = Doing("cancel_jobs", filter, Counts(), said("reason", reason), said("by", by))
        return (yield from _carry_out(CANCEL, doing, progress, dry_run))

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
    ) -> Plan[Acted]:
        """Start a new run of all jobs that fit and failed or were canceled.

        Left alone and counted are those whose unique key another job has, and steps: see ``requeue_workflow``.
        """
        filter = _chosen("requeue_jobs", REQUEUE, all, wanted)
        reason, by = said("reason", reason), said("by", by)
        keep = flag("keep_checkpoint", keep_checkpoint)
        doing = Doing("requeue_jobs", filter, Counts(), reason, by, keep)
        return (yield from _carry_out(REQUEUE, doing, progress, dry_run))

    def _run_jobs_now(
        self,
        *,
        all: bool = False,
        by: str | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
        **wanted: Unpack[Wanted],
    ) -> Plan[Acted]:
        """Let all jobs that fit and wait for their time, or for a retry, be due now."""
        filter = _chosen("run_jobs_now", RUN_NOW, all, wanted)
        doing = Doing("run_jobs_now", filter, Counts(), by=said("by", by))
        return (yield from _carry_out(RUN_NOW, doing, progress, dry_run))

    def _delete_jobs(
        self,
        *,
        all: bool = False,
        reason: str | None = None,
        by: str | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
        **wanted: Unpack[Wanted],
    ) -> Plan[Acted]:
        """Delete all jobs that fit, with their history; those that run are asked to stop instead.

        Steps of workflows are left alone and counted.
        """
        filter = _chosen("delete_jobs", DELETE, all, wanted)
        doing = Doing("delete_jobs", filter, Counts(), said("reason", reason), said("by", by))
        doing = doing._replace(keep_key=self.keep_keys_for)
        return (yield from _carry_out(DELETE, doing, progress, dry_run))

    def _count_jobs_by(self, by: By, **wanted: Unpack[Wanted]) -> Plan[dict[str | None, int]]:
        """How many jobs fit, for each ``state``, ``queue``, ``task``, ``tenant`` or ``error_code``; the most first.

        The conditions are those of ``list_jobs``. Of ``ready`` jobs those that are ``scheduled`` or ``retrying`` are
        told apart.
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
        verb: str | None = None,
        actor: str | None = None,
        subject: str | None = None,
        before: int | None = None,
        limit: int = 50,
    ) -> Plan[list[Act]]:
        """A page of what operators did to many jobs, queues, tasks and workflows, newest first.

        For the next page give the last id as ``before``. What was done to one job is in its history.
        """
        number("limit", limit, 1, PAGE)
        rows = yield from perform(
            acts.list_acts,
            verb=filter_text("verb", verb),
            actor=None if actor is None else said("actor", actor),
            subject=None if subject is None else said("subject", subject),
            before=acts.LAST if before is None else number("before", before, 0, acts.LAST),
            n=limit,
        )
        return [
            Act(row.id, moment(row.at), row.actor, row.verb, row.subject, _detail(row.detail)) for row in rows
        ]

    cancel_jobs, acancel_jobs = blocking(_cancel_jobs), waiting(_cancel_jobs)
    requeue_jobs, arequeue_jobs = blocking(_requeue_jobs), waiting(_requeue_jobs)
    run_jobs_now, arun_jobs_now = blocking(_run_jobs_now), waiting(_run_jobs_now)
    delete_jobs, adelete_jobs = blocking(_delete_jobs), waiting(_delete_jobs)
    count_jobs_by, acount_jobs_by = blocking(_count_jobs_by), waiting(_count_jobs_by)
    list_acts, alist_acts = blocking(_list_acts), waiting(_list_acts)


def _chosen(name: str, verb: Verb, all: bool, wanted: Wanted) -> Filter:
    """The filter, if it is one for this verb."""
    filter = checked_filter(wanted)
    if filter == EVERY and not flag("all", all):
        raise InvalidOption(f"{name} needs a condition, such as queue=; for every job say all=True.")
    if filter != EVERY and flag("all", all):
        raise InvalidOption("all=True takes every job: give conditions or all, not both.")
    takes = (*verb.takes, *(get_args(Later) if "ready" in verb.takes else ()))
    if filter.state is not None and filter.state not in takes:
        said = f"{{{name}}} takes jobs that are {' or '.join(takes)}, not {filter.state}."
        raise InvalidOption(advise(said))
    return filter


def _carry_out(verb: Verb, doing: Doing, progress: Progress | None, dry_run: bool) -> Plan[Acted]:
    """Stretch by stretch, and at the end what somebody else held meanwhile."""
    tell = progress or _tell_nobody
    if not callable(tell):
        raise InvalidOption("progress must be a function that takes the counts so far.")
    flag("dry_run", dry_run)
    held: list[Found] = []
    edge: str | None = LAST
    length = CHUNK
    while edge is not None:
        stretch = yield from perform(look, doing.filter, among=verb.takes, before=edge, length=length)
        edge, length = stretch.end, longer(length, doing.filter)
        steps, jobs = _steps_apart(verb, stretch.jobs)
        doing = _counted(doing, Counts({"is_a_step": steps}))
        if dry_run:
            doing = _counted(doing, Counts(verb.expected(job.state) for job in jobs))
            tell(doing.counts.copy())
        else:
            doing, locked = yield from _in_batches(verb, jobs, doing, tell)
            held += locked
    until = time.monotonic() + PATIENCE
    while held and time.monotonic() < until:
        yield from pause(_PAUSE)
        doing, held = yield from _in_batches(verb, held, doing, tell)
    return Acted(doing.counts + Counts({"locked": len(held)}), doing.act)


def _in_batches(verb: Verb, jobs: list[Found], doing: Doing, tell: Progress) -> Plan[Batch]:
    held: list[Found] = []
    for start in range(0, len(jobs), BATCH):
        doing, locked = yield from perform(verb.batch, jobs[start : start + BATCH], doing)
        held += locked
        tell(doing.counts.copy())
    return Batch(doing, held)


def _steps_apart(verb: Verb, jobs: list[Found]) -> tuple[int, list[Found]]:
    if verb.steps:
        return 0, jobs
    alone = [job for job in jobs if job.workflow is None]
    return len(jobs) - len(alone), alone


def _counted(doing: Doing, more: Counts) -> Doing:
    return doing._replace(counts=doing.counts + more)


def _tell_nobody(counts: Counts) -> None:
    pass


def _detail(text: str | None) -> dict[str, Any]:
    return {} if text is None else msgspec.json.decode(text, type=dict[str, Any])
