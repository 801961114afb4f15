"""Views of jobs, workflows, workers and migrations for people: redacted, and limited in size.

The command line shows these views. An argument is hidden if the task's code or the stored task redacts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Unpack

from msgspec.structs import replace

from perdure.client.abbreviated import whole_job_id, whole_workflow_id
from perdure.client.jobs import JobId, job_id
from perdure.client.timeline import Entry, timeline
from perdure.client.workflow_handle import Placed, placed
from perdure.client.workflows import workflow_id
from perdure.errors import JobNotFound, WorkflowNotFound
from perdure.model.explain import Explanation
from perdure.model.graph import Status
from perdure.model.job import Instant, JobRow
from perdure.model.redact import load_names, redacted
from perdure.ops.browse import LogRow, Traces, trace_job
from perdure.ops.count import By as By
from perdure.ops.tasks import KnownTask, list_tasks
from perdure.ops.worker import WorkerRow as WorkerRow
from perdure.ops.workers_read import WorkersNow, list_workers_now
from perdure.ops.workers_read import names_in as names_in
from perdure.ops.workflow import FailedStep as FailedStep
from perdure.ops.workflow import WorkflowRow as WorkflowRow
from perdure.ops.workflow import find_failed_steps, get_graph
from perdure.plan.plan import Plan, async_method, in_thread, perform, sync_method
from perdure.request.filter import Wanted
from perdure.store.store import Store

if TYPE_CHECKING:
    from perdure.app import App

MOST_SHOWN = 64 * 1024
"""The default limit for the characters of one value, message or traceback."""

_VALUES = ("payload", "meta", "checkpoint", "result")
_TEXTS = (*_VALUES, "error_message", "error_trace")


class AttemptView(NamedTuple):
    """An attempt that has ended, or the running attempt."""

    token: int
    run: int
    attempt: int
    kind: str
    code: str | None
    message: str | None
    trace: str | None
    worker: str | None
    started_at: Instant | None
    finished_at: Instant | None
    delay: int | None
    decided_by: str | None
    worker_name: str | None
    """None if the worker is no longer known."""


class JobView(NamedTuple):
    """A job with its attempts, its history (oldest first), its log, and the reason why it is not running."""

    job: JobRow
    attempts: list[AttemptView]
    history: list[Entry]
    logs: list[LogRow]
    explanation: Explanation


class WorkflowView(NamedTuple):
    """A workflow and its steps in the order they were added. ``now`` is the database's time."""

    workflow: WorkflowRow
    steps: list[Placed]
    now: Instant


class Views:
    """The methods of ``app.views``.

    ``app.stats`` and ``app.list_tasks`` have no view, because they contain nothing to redact or to cut.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    @property
    def store(self) -> Store:
        return self._app.store

    @property
    def address(self) -> str:
        """The database's URL without a password."""
        return self.store.address

    def _jobs(
        self, *, before: JobId | None = None, limit: int = 50, **wanted: Unpack[Wanted]
    ) -> Plan[list[JobRow]]:
        """A page of ``app.list_jobs``, without arguments, checkpoints, results and tracebacks."""
        found = yield from self._app._list_jobs(before=before, limit=limit, **wanted)
        rows = [job.row for job in found if job.row is not None]
        tasks = yield from perform(list_tasks)
        return [
            _shown(replace(row, **_WITHOUT_LARGE), self._redacted_names(row.task, tasks), MOST_SHOWN)
            for row in rows
        ]

    def _job(self, id: JobId, *, most: int | None = MOST_SHOWN) -> Plan[JobView]:
        """Everything about one job. ``most``: the most characters of one value; None for all."""
        traces = yield from perform(trace_job, job_id(id))
        if traces is None:
            raise JobNotFound
        tasks = yield from perform(list_tasks)
        names = self._redacted_names(traces.job.task, tasks)
        row = _shown(traces.job, names, most)
        why = yield from self._app._explain_job(id)
        logs = [line._replace(message=_cut(line.message, most)) for line in traces.logs]
        attempts = [
            one._replace(
                message=one.message and _cut(one.message, most), trace=one.trace and _cut(one.trace, most)
            )
            for one in traces.attempts
        ]
        traces = traces._replace(job=row, attempts=attempts, logs=logs)
        history = [_shown_entry(entry, names, most) for entry in timeline(traces)]
        return JobView(row, _attempts(traces), history, logs, why)

    def _workflows(
        self,
        *,
        name: str | None = None,
        status: Status | None = None,
        tenant: str | None = None,
        before: JobId | None = None,
        limit: int = 50,
    ) -> Plan[list[WorkflowRow]]:
        """A page of ``app.list_workflows``."""
        found = yield from self._app._list_workflows(
            name=name, status=status, tenant=tenant, before=before, limit=limit
        )
        tasks = yield from perform(list_tasks)
        return [self._workflow_row(one.row, tasks) for one in found]

    def _workflow(self, id: JobId) -> Plan[WorkflowView]:
        """A workflow with its graph."""
        graph = yield from perform(get_graph, workflow_id(id))
        if graph is None:
            raise WorkflowNotFound
        tasks = yield from perform(list_tasks)
        return WorkflowView(self._workflow_row(graph.workflow, tasks), [*placed(graph)], graph.now)

    def _failed_steps(self, rows: Sequence[WorkflowRow]) -> Plan[dict[str, FailedStep]]:
        """The first failed step of each failed workflow."""
        ids = [row.id for row in rows if row.status == "failed"]
        found = (yield from perform(find_failed_steps, ids)) if ids else {}
        return {
            id: step._replace(message=step.message and _cut(step.message, MOST_SHOWN))
            for id, step in found.items()
        }

    def _whole_job_id(self, typed: str) -> Plan[str]:
        """The id of the only job whose id begins with ``typed``. Raises an error if there is not exactly one."""
        return (yield from whole_job_id(typed))

    def _whole_workflow_id(self, typed: str) -> Plan[str]:
        """The id of the only workflow whose id begins with ``typed``. Raises an error if there is not exactly one."""
        return (yield from whole_workflow_id(typed))

    def _workers(self) -> Plan[WorkersNow]:
        """The workers that are not retired, and the database's time, which decides whether a worker is silent."""
        return (yield from perform(list_workers_now))

    def _task_queues(self) -> Plan[dict[str, str]]:
        """The default queue of each stored task, by name. This is cheap to read, for example to suggest a name."""
        return {name: task.definition.queue for name, task in (yield from perform(list_tasks)).items()}

    def _migrations(self) -> Plan[dict[int, str]]:
        """The migrations of this version of perdure, with their names."""
        yield from ()
        return {migration.version: str(migration) for migration in self.store.migrations}

    def _migration_sql(self, *, to: int | None = None) -> Plan[str]:
        """The SQL that ``app.migrate`` would run."""
        return (yield from in_thread(lambda: self.store.migration_sql(to=to)))

    jobs, ajobs = sync_method(_jobs), async_method(_jobs)
    job, ajob = sync_method(_job), async_method(_job)
    workflows, aworkflows = sync_method(_workflows), async_method(_workflows)
    workflow, aworkflow = sync_method(_workflow), async_method(_workflow)
    failed_steps, afailed_steps = sync_method(_failed_steps), async_method(_failed_steps)
    whole_job_id, awhole_job_id = sync_method(_whole_job_id), async_method(_whole_job_id)
    whole_workflow_id, awhole_workflow_id = (
        sync_method(_whole_workflow_id),
        async_method(_whole_workflow_id),
    )
    workers, aworkers = sync_method(_workers), async_method(_workers)
    task_queues, atask_queues = sync_method(_task_queues), async_method(_task_queues)
    migrations, amigrations = sync_method(_migrations), async_method(_migrations)
    migration_sql, amigration_sql = sync_method(_migration_sql), async_method(_migration_sql)

    def _redacted_names(self, task: str, stored: dict[str, KnownTask]) -> set[str]:
        known, here = stored.get(task), self._app.tasks.get(task)
        names = {*load_names(known.definition.redact)} if known is not None else set()
        return names if here is None else names | here.redact

    def _workflow_row(self, row: WorkflowRow, stored: dict[str, KnownTask]) -> WorkflowRow:
        if row.result is None or row.result_task is None:
            return row
        return row._replace(result=redacted(row.result, self._redacted_names(row.result_task, stored)))


_WITHOUT_LARGE = {"payload": "{}", "checkpoint": None, "result": None, "error_trace": None}


def _shown(row: JobRow, names: set[str], most: int | None) -> JobRow:
    """The row without redacted values, with every text cut to ``most`` characters."""
    texts: dict[str, str | None] = {name: getattr(row, name) for name in _TEXTS}
    for name in _VALUES:
        if (text := texts[name]) is not None:
            texts[name] = redacted(text, names)
    return replace(row, **{name: text and _cut(text, most) for name, text in texts.items()})


def _shown_entry(entry: Entry, names: set[str], most: int | None) -> Entry:
    """The entry, redacted and cut. The entry of a requeue has the dropped checkpoint and result as JSON texts."""
    kept = {
        name: _cut(redacted(value, names), most)
        for name in ("checkpoint", "result")
        if isinstance(value := entry.detail.get(name), str)
    }
    return entry._replace(detail={**entry.detail, **kept}) if kept else entry


def _cut(text: str, most: int | None) -> str:
    if most is None or len(text) <= most:
        return text
    return f"{text[:most]}… ({len(text)} characters)"


def _attempts(traces: Traces) -> list[AttemptView]:
    """All attempts: the earlier attempts, and the running or last attempt, which is in the job's row."""
    row, names = traces.job, {id: worker.name for id, worker in traces.workers.items()}
    earlier = [AttemptView(*one, worker_name=names.get(one.worker or "")) for one in traces.attempts]
    if row.started_at is None:
        return earlier
    # While a job runs, its row has the error of the previous attempt.
    ended = row.state != "running"
    current = AttemptView(
        token=row.token,
        run=row.run,
        attempt=row.attempt,
        kind=(row.error_kind if ended else None) or row.state,
        code=row.error_code if ended else None,
        message=row.error_message if ended else None,
        trace=row.error_trace if ended else None,
        worker=row.worker,
        started_at=row.started_at,
        finished_at=row.finished_at,
        delay=None,
        decided_by=None,
        worker_name=names.get(row.worker or ""),
    )
    return [*earlier, current]
