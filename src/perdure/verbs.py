"""Every verb of the app that looks at jobs, acts on them, or sets a queue."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

from msgspec import UNSET, UnsetType

from perdure.catalog import TaskFacts, show_task
from perdure.errors import InvalidOption, JobNotFound, UnknownTask
from perdure.filter import Wanted, checked_filter
from perdure.handle import Job
from perdure.history import Entry, tell
from perdure.model.backoff import Backoff, as_backoff
from perdure.model.explain import Explanation, explain
from perdure.model.job import JobRow, Span
from perdure.moments import instant, moment, span
from perdure.ops import browse, operate, queues, tasks, worker
from perdure.ops.catalog import list_catalog
from perdure.ops.explain import examine
from perdure.ops.find import LAST
from perdure.ops.operate import CancelOutcome, DeleteOutcome, RequeueOutcome, RunNowOutcome
from perdure.ops.stats import measure
from perdure.options import INTEGER, Named, filter_text, flag, number, task_config, task_name, text, whole
from perdure.stats import Stats, show
from perdure.store.plan import Plan, blocking, perform, perform_on, waiting
from perdure.store.store import Store

JobId: TypeAlias = str | uuid.UUID
NO_JOB = str(uuid.UUID(int=0))
"""What no job is called."""

PAGE = 1000
"""Jobs in one page at most."""


class Verbs:
    """Mixed into App: reads and operators' acts. Each verb has a twin with a leading ``a`` for async code."""

    if TYPE_CHECKING:

        @property
        def store(self) -> Store: ...

        @property
        def keep_keys_for(self) -> Span | None: ...

        def _handle(self, row: JobRow) -> Job[Any]: ...

    def _get_job(self, id: JobId) -> Plan[Job[Any]]:
        """The job with this id; JobNotFound if there is none."""
        row = yield from perform(browse.get_job, job_id(id))
        if row is None:
            raise JobNotFound
        return self._handle(row)

    def _get_jobs(self, ids: Sequence[JobId]) -> Plan[list[Job[Any] | None]]:
        """Jobs in the order asked, None where there is none."""
        if isinstance(ids, str) or not isinstance(ids, Iterable):
            raise InvalidOption("ids must be a list of jobs' ids.")
        known: list[str] = []
        for id in ids:
            try:
                known.append(job_id(id))
            except JobNotFound:
                known.append(NO_JOB)
        rows = yield from perform(browse.get_jobs, known)
        return [None if row is None else self._handle(row) for row in rows]

    def _list_jobs(
        self, *, before: JobId | None = None, limit: int = 50, **wanted: Unpack[Wanted]
    ) -> Plan[list[Job[Any]]]:
        """A page of jobs, newest first; for the next one give the last id as ``before``.

        All conditions hold. ``state``: one of those in docs/states.md, or of ``ready`` only what is ``scheduled`` or
        ``retrying``. ``task``: its name, or the task itself. ``text`` stands somewhere in the arguments. Times are
        from ``created_after`` on, and before ``created_before``.
        """
        number("limit", limit, 1, PAGE)
        rows = yield from perform(
            browse.list_jobs,
            checked_filter(wanted),
            before=LAST if before is None else job_id(before),
            n=limit,
        )
        return [self._handle(row) for row in rows]

    def _count_jobs(
        self, *, queue: str | None = None, tenant: str | None = None
    ) -> Plan[dict[str, dict[str, int]]]:
        """How many jobs each queue has in each state, with ``scheduled`` and ``retrying`` apart from ``ready``."""
        return (
            yield from perform(
                browse.count_jobs, queue=filter_text("queue", queue), tenant=filter_text("tenant", tenant)
            )
        )

    def _oldest_ready(self, *, queue: str | None = None) -> Plan[dict[str, datetime]]:
        """Since when each queue has had a job that could run: its lag."""
        oldest = yield from perform(browse.oldest_ready, queue=filter_text("queue", queue))
        return {name: moment(at) for name, at in oldest.items()}

    def _job_history(self, id: JobId) -> Plan[list[Entry]]:
        """Everything that happened to a job, oldest first."""
        traces = yield from perform(browse.trace_job, job_id(id))
        if traces is None:
            raise JobNotFound
        return tell(traces)

    def _explain_job(self, id: JobId) -> Plan[Explanation]:
        """Why a job is not running, or where it runs, or how it ended."""
        case = yield from perform(examine, job_id(id))
        if case is None:
            raise JobNotFound
        return explain(case)

    def _cancel_job(
        self, id: JobId, *, reason: str | None = None, by: str | None = None, conn: object | None = None
    ) -> Plan[CancelOutcome]:
        """Cancel a job, or ask the worker that runs it to stop."""
        reason, by = said("reason", reason), said("by", by)
        return (yield from perform_on(conn, operate.cancel, job_id(id), reason=reason, by=by))

    def _requeue_job(
        self,
        id: JobId,
        *,
        run: int | None = None,
        keep_checkpoint: bool = False,
        reason: str | None = None,
        by: str | None = None,
        conn: object | None = None,
    ) -> Plan[RequeueOutcome]:
        """Start a new run of a job that failed or was canceled; ``run`` names the run the caller saw."""
        return (
            yield from perform_on(
                conn,
                operate.requeue,
                job_id(id),
                run=whole("run", run, 1, INTEGER),
                keep_checkpoint=flag("keep_checkpoint", keep_checkpoint),
                reason=said("reason", reason),
                by=said("by", by),
            )
        )

    def _run_now(self, id: JobId, *, by: str | None = None) -> Plan[RunNowOutcome]:
        """Let a job that waits for its time be due now."""
        return (yield from perform(operate.run_now, job_id(id), by=said("by", by)))

    def _delete_job(
        self, id: JobId, *, reason: str | None = None, by: str | None = None
    ) -> Plan[DeleteOutcome]:
        """Delete a job and its history; one that runs is asked to stop instead."""
        keep, reason, by = self.keep_keys_for, said("reason", reason), said("by", by)
        return (yield from perform(operate.delete, job_id(id), keep_key=keep, reason=reason, by=by))

    def _pause_queue(self, name: str, *, by: str | None = None) -> Plan[None]:
        """Hand out nothing from this queue; what runs goes on."""
        yield from perform(queues.pause, text("queue", name), by=said("by", by))

    def _resume_queue(self, name: str, *, by: str | None = None) -> Plan[None]:
        """Hand out jobs from this queue again."""
        yield from perform(queues.resume, text("queue", name), by=said("by", by))

    def _set_queue(self, name: str, *, backoff: float | Backoff | None, by: str | None = None) -> Plan[None]:
        """Change a queue's live settings. A back-off overrides those of its tasks; None ends that."""
        policy = None if backoff is None else as_backoff(backoff)
        yield from perform(queues.set_backoff, text("queue", name), policy, by=said("by", by))

    def _list_queues(self) -> Plan[list[queues.Queue]]:
        """The queues that have settings of their own."""
        return (yield from perform(queues.list_queues))

    def _set_task(
        self,
        name: str | Named,
        *,
        enabled: bool | None = None,
        config: Mapping[str, object] | UnsetType | None = UNSET,
        by: str | None = None,
    ) -> Plan[None]:
        """Allow or refuse new jobs of a task, while queued work still runs; set what its handlers read as ctx.config.

        ``config`` is plain JSON under names and replaces the one before; None takes it away.
        """
        if enabled is None and config is UNSET:
            raise InvalidOption("Give enabled or config, or both: there is nothing to set.")
        if enabled is not None:
            flag("enabled", enabled)
        given = config if config is UNSET or config is None else task_config(config)
        yield from perform(tasks.set_task, task_name(name), enabled=enabled, config=given, by=said("by", by))

    def _list_tasks(self) -> Plan[list[TaskFacts]]:
        """The tasks there are, also those that only jobs name: defaults, config, who serves them, what is to do."""
        found = yield from perform(list_catalog)
        return [show_task(name, task) for name, task in found.items()]

    def _get_task(self, name: str | Named) -> Plan[TaskFacts]:
        """The same for one task; UnknownTask if neither the database nor a job knows it."""
        found, known = (yield from perform(list_catalog)), task_name(name)
        if known not in found:
            raise UnknownTask
        return show_task(known, found[known])

    def _list_workers(self) -> Plan[list[worker.WorkerRow]]:
        """The workers that are not retired."""
        return (yield from perform(worker.list_workers))

    def _stats(self, *, since: float | timedelta | datetime | None = 3600) -> Plan[Stats]:
        """Queues, workers, the database and our connections to it, at a glance; and how long jobs waited and ran.

        ``since``: which have ended in so many seconds, or since then; None asks for none.
        """
        at = instant("since", since) if isinstance(since, datetime) else None
        ago = None if since is None or isinstance(since, datetime) else span("since", since)
        numbers = yield from perform(measure, since=ago, after=at)
        return show(numbers, self.store.facts(), self.store.dialect)

    get_job, aget_job = blocking(_get_job), waiting(_get_job)
    get_jobs, aget_jobs = blocking(_get_jobs), waiting(_get_jobs)
    list_jobs, alist_jobs = blocking(_list_jobs), waiting(_list_jobs)
    count_jobs, acount_jobs = blocking(_count_jobs), waiting(_count_jobs)
    oldest_ready, aoldest_ready = blocking(_oldest_ready), waiting(_oldest_ready)
    job_history, ajob_history = blocking(_job_history), waiting(_job_history)
    explain_job, aexplain_job = blocking(_explain_job), waiting(_explain_job)
    cancel_job, acancel_job = blocking(_cancel_job), waiting(_cancel_job)
    requeue_job, arequeue_job = blocking(_requeue_job), waiting(_requeue_job)
    run_now, arun_now = blocking(_run_now), waiting(_run_now)
    delete_job, adelete_job = blocking(_delete_job), waiting(_delete_job)
    pause_queue, apause_queue = blocking(_pause_queue), waiting(_pause_queue)
    resume_queue, aresume_queue = blocking(_resume_queue), waiting(_resume_queue)
    set_queue, aset_queue = blocking(_set_queue), waiting(_set_queue)
    list_queues, alist_queues = blocking(_list_queues), waiting(_list_queues)
    set_task, aset_task = blocking(_set_task), waiting(_set_task)
    list_tasks, alist_tasks = blocking(_list_tasks), waiting(_list_tasks)
    get_task, aget_task = blocking(_get_task), waiting(_get_task)
    list_workers, alist_workers = blocking(_list_workers), waiting(_list_workers)
    stats, astats = blocking(_stats), waiting(_stats)


def job_id(id: JobId) -> str:
    """An id in its one spelling; a text that is no id belongs to no job."""
    if isinstance(id, uuid.UUID):
        return str(id)
    if not isinstance(id, str):
        raise InvalidOption("A job's id is a text or a UUID.")
    try:
        return str(uuid.UUID(id))
    except ValueError:
        raise JobNotFound from None


def said(name: str, value: str | None) -> str | None:
    """What an operator says, if anything."""
    return None if value is None else text(name, value, 2000)
