"""The app's methods that read jobs, act on them, or change queues and tasks."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

from msgspec import UNSET, UnsetType

from perdure.client.job import Job
from perdure.client.queues import (
    QueueChanges,
    QueueEdit,
    QueuePause,
    QueueSettings,
    checked_changes,
    show_edits,
    show_pause,
    show_queue,
)
from perdure.client.stats import Stats, show
from perdure.client.tasks import TaskFacts, show_task
from perdure.client.timeline import Entry, timeline
from perdure.errors import InvalidOption, JobNotFound, UnknownTask
from perdure.model.explain import Explanation, explain
from perdure.model.job import JobRow, Span
from perdure.ops import browse, cool_down, job_actions, queues, tasks, worker
from perdure.ops.catalog import list_catalog
from perdure.ops.explain import examine
from perdure.ops.job_actions import CancelOutcome, DeleteOutcome, RequeueOutcome, RunNowOutcome
from perdure.ops.stats import measure
from perdure.plan.plan import Plan, async_method, perform, perform_on, sync_method
from perdure.request.filter import Wanted, checked_filter
from perdure.request.options import (
    INTEGER,
    Named,
    filter_text,
    flag,
    number,
    task_config,
    task_name,
    text,
    whole,
)
from perdure.request.times import duration_us, from_us, to_us
from perdure.store.store import Store

JobId: TypeAlias = str | uuid.UUID
NO_JOB = str(uuid.UUID(int=0))
"""An id that no job has."""

PAGE = 1000
"""The most jobs in one page."""


class JobMethods:
    """Methods of App that read jobs, and actions for operators. The name of each async version begins with ``a``."""

    if TYPE_CHECKING:

        @property
        def store(self) -> Store: ...

        @property
        def keep_keys_for(self) -> Span | None: ...

        def _handle(self, row: JobRow) -> Job[Any]: ...

    def _get_job(self, id: JobId) -> Plan[Job[Any]]:
        """The job with this id; JobNotFound if it does not exist."""
        row = yield from perform(browse.get_job, job_id(id))
        if row is None:
            raise JobNotFound
        return self._handle(row)

    def _get_jobs(self, ids: Sequence[JobId]) -> Plan[list[Job[Any] | None]]:
        """The jobs with these ids, in the same order; None for an id without a job."""
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
        """A page of jobs, newest first; for the next page give the last id as ``before``.

        Jobs must meet all conditions. ``state`` is the visible state, see docs/states.md: ``ready`` jobs are due and
        neither ``scheduled``, ``retrying`` nor ``held``. If ``state`` is ``scheduled`` or ``retrying``, the job
        that is due next comes first.
        ``task``: a task's name, or the task itself. ``text``: part of the arguments. ``created_after`` includes the
        given time, ``created_before`` excludes it.
        """
        number("limit", limit, 1, PAGE)
        rows = yield from perform(
            browse.list_jobs,
            checked_filter(wanted),
            before=None if before is None else job_id(before),
            n=limit,
        )
        return [self._handle(row) for row in rows]

    def _count_jobs(
        self, *, queue: str | None = None, tenant: str | None = None
    ) -> Plan[dict[str, dict[str, int]]]:
        """The number of jobs by queue and visible state, see docs/states.md.

        Gates of workflows are not counted: they are in no queue.
        """
        return (
            yield from perform(
                browse.count_jobs, queue=filter_text("queue", queue), tenant=filter_text("tenant", tenant)
            )
        )

    def _oldest_ready(self, *, queue: str | None = None) -> Plan[dict[str, datetime]]:
        """For each queue, the time since which its oldest ready job has been due.

        The lag is the time passed since then.
        """
        oldest = yield from perform(browse.oldest_ready, queue=filter_text("queue", queue))
        return {name: from_us(at) for name, at in oldest.items()}

    def _job_history(self, id: JobId) -> Plan[list[Entry]]:
        """Everything that happened to a job, oldest first."""
        traces = yield from perform(browse.trace_job, job_id(id))
        if traces is None:
            raise JobNotFound
        return timeline(traces)

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
        reason, by = optional_text("reason", reason), optional_text("by", by)
        return (yield from perform_on(conn, job_actions.cancel, job_id(id), reason=reason, by=by))

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
        """Start a new run of a job that failed or was canceled.

        ``run``: requeue the job only if this is still the number of its run.
        """
        return (
            yield from perform_on(
                conn,
                job_actions.requeue,
                job_id(id),
                run=whole("run", run, 1, INTEGER),
                keep_checkpoint=flag("keep_checkpoint", keep_checkpoint),
                reason=optional_text("reason", reason),
                by=optional_text("by", by),
            )
        )

    def _run_now(self, id: JobId, *, by: str | None = None) -> Plan[RunNowOutcome]:
        """Make a scheduled or retrying job due now."""
        return (yield from perform(job_actions.run_now, job_id(id), by=optional_text("by", by)))

    def _delete_job(
        self, id: JobId, *, reason: str | None = None, by: str | None = None
    ) -> Plan[DeleteOutcome]:
        """Delete a job and its history; a running job is asked to stop instead."""
        keep, reason, by = self.keep_keys_for, optional_text("reason", reason), optional_text("by", by)
        return (yield from perform(job_actions.delete, job_id(id), keep_key=keep, reason=reason, by=by))

    def _pause_queue(
        self,
        name: str,
        *,
        resume_at: datetime | timedelta | None = None,
        reason: str | None = None,
        by: str | None = None,
    ) -> Plan[None]:
        """Stop handing out jobs of this queue; running jobs go on.

        ``resume_at``: when the pause ends by itself, as a time or as a duration from now.
        """
        queue, reason, by = text("queue", name), optional_text("reason", reason), optional_text("by", by)
        if isinstance(resume_at, timedelta):
            length = duration_us("resume_at", resume_at, least=1)
            yield from perform(queues.pause, queue, resume_in=length, reason=reason, by=by)
        else:
            end = None if resume_at is None else to_us("resume_at", resume_at)
            yield from perform(queues.pause, queue, resume_at=end, reason=reason, by=by)

    def _resume_queue(self, name: str, *, by: str | None = None) -> Plan[QueuePause | None]:
        """Hand out jobs of this queue again. Return the ended pause; None if the queue was not paused."""
        ended = yield from perform(queues.resume, text("queue", name), by=optional_text("by", by))
        return show_pause(ended)

    def _warm_queue(self, name: str, *, by: str | None = None) -> Plan[bool]:
        """End the cool-down of a queue and make the next cool-down short again.

        Return whether there was a cool-down.
        """
        return (yield from perform(cool_down.warm_queue, text("queue", name), by=optional_text("by", by)))

    def _set_queue(self, name: str, *, by: str | None = None, **changes: Unpack[QueueChanges]) -> Plan[None]:
        """Change some of a queue's live settings; None removes a setting.

        Settings that are changed here override the code's declarations.

        ``backoff`` overrides the back-off of the queue's tasks. ``timeout`` applies to a job if neither the job nor its
        task sets a timeout. ``concurrency``: the most jobs that run at the same time, in all workers.
        """
        queue, settings = text("queue", name), checked_changes(changes)
        yield from perform(queues.set_queue, queue, settings, by=optional_text("by", by))

    def _reset_queue(self, name: str, *, by: str | None = None) -> Plan[list[QueueEdit]]:
        """Go back to the settings that the code declares, if any. Return the settings that operators had set."""
        before = yield from perform(queues.reset_queue, text("queue", name), by=optional_text("by", by))
        return [] if before is None else show_edits(before)

    def _list_queues(self) -> Plan[list[QueueSettings]]:
        """The settings, pauses and cool-downs of queues. A queue that never had any of these is not listed."""
        return [show_queue(queue) for queue in (yield from perform(queues.list_queues))]

    def _set_task(
        self,
        name: str | Named,
        *,
        enabled: bool | None = None,
        config: Mapping[str, object] | UnsetType | None = UNSET,
        by: str | None = None,
    ) -> Plan[None]:
        """Enable or disable a task, or set the config that its handlers read as ``ctx.config``.

        A disabled task refuses new jobs; queued jobs still run. ``config``: names and JSON values, which replace the
        old config; None removes it.
        """
        if enabled is None and config is UNSET:
            raise InvalidOption("Give enabled or config, or both: there is nothing to set.")
        if enabled is not None:
            flag("enabled", enabled)
        given = config if config is UNSET or config is None else task_config(config)
        yield from perform(
            tasks.set_task, task_name(name), enabled=enabled, config=given, by=optional_text("by", by)
        )

    def _list_tasks(self) -> Plan[list[TaskFacts]]:
        """All tasks with their defaults, config, workers and unfinished jobs, including tasks that only jobs name."""
        found = yield from perform(list_catalog)
        return [show_task(name, task) for name, task in found.items()]

    def _get_task(self, name: str | Named) -> Plan[TaskFacts]:
        """One task, as in ``list_tasks``. UnknownTask if the task is not stored and no job names it."""
        found, known = (yield from perform(list_catalog)), task_name(name)
        if known not in found:
            raise UnknownTask
        return show_task(known, found[known])

    def _list_workers(self) -> Plan[list[worker.WorkerRow]]:
        """The workers that are not retired."""
        return (yield from perform(worker.list_workers))

    def _stats(self, *, since: float | timedelta | datetime | None = 3600) -> Plan[Stats]:
        """Statistics of queues, workers, the database and perdure's connections, and of how long jobs waited and ran.

        ``since``: measure the jobs that ended since this time, or since this many seconds ago; None measures no jobs.
        """
        at = to_us("since", since) if isinstance(since, datetime) else None
        ago = None if since is None or isinstance(since, datetime) else duration_us("since", since)
        numbers = yield from perform(measure, since=ago, after=at)
        return show(numbers, self.store.facts(), self.store.dialect)

    get_job, aget_job = sync_method(_get_job), async_method(_get_job)
    get_jobs, aget_jobs = sync_method(_get_jobs), async_method(_get_jobs)
    list_jobs, alist_jobs = sync_method(_list_jobs), async_method(_list_jobs)
    count_jobs, acount_jobs = sync_method(_count_jobs), async_method(_count_jobs)
    oldest_ready, aoldest_ready = sync_method(_oldest_ready), async_method(_oldest_ready)
    job_history, ajob_history = sync_method(_job_history), async_method(_job_history)
    explain_job, aexplain_job = sync_method(_explain_job), async_method(_explain_job)
    cancel_job, acancel_job = sync_method(_cancel_job), async_method(_cancel_job)
    requeue_job, arequeue_job = sync_method(_requeue_job), async_method(_requeue_job)
    run_now, arun_now = sync_method(_run_now), async_method(_run_now)
    delete_job, adelete_job = sync_method(_delete_job), async_method(_delete_job)
    pause_queue, apause_queue = sync_method(_pause_queue), async_method(_pause_queue)
    warm_queue, awarm_queue = sync_method(_warm_queue), async_method(_warm_queue)
    resume_queue, aresume_queue = sync_method(_resume_queue), async_method(_resume_queue)
    set_queue, aset_queue = sync_method(_set_queue), async_method(_set_queue)
    reset_queue, areset_queue = sync_method(_reset_queue), async_method(_reset_queue)
    list_queues, alist_queues = sync_method(_list_queues), async_method(_list_queues)
    set_task, aset_task = sync_method(_set_task), async_method(_set_task)
    list_tasks, alist_tasks = sync_method(_list_tasks), async_method(_list_tasks)
    get_task, aget_task = sync_method(_get_task), async_method(_get_task)
    list_workers, alist_workers = sync_method(_list_workers), async_method(_list_workers)
    stats, astats = sync_method(_stats), async_method(_stats)


def job_id(id: JobId) -> str:
    """The id in its canonical form. JobNotFound if the string is not a UUID."""
    if isinstance(id, uuid.UUID):
        return str(id)
    if not isinstance(id, str):
        raise InvalidOption("A job's id must be a string or a UUID.")
    try:
        return str(uuid.UUID(id))
    except ValueError:
        raise JobNotFound from None


def optional_text(name: str, value: str | None) -> str | None:
    """Validate an operator's name or reason, if it is given."""
    return None if value is None else text(name, value, 2000)
