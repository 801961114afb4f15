"""The handle of a started workflow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.client.job import JobError, until_over
from perdure.errors import WorkflowCanceled, WorkflowFailed, WorkflowNotFound
from perdure.model.graph import GATE, OVER, Shape, Status, Which
from perdure.model.job import Instant, State
from perdure.model.json_text import read_json
from perdure.ops import workflow as ops
from perdure.ops.workflow import Graph, Spoiler, StepRow, WorkflowRow
from perdure.ops.workflow_actions import Canceling, Requeuing
from perdure.plan.plan import Plan, async_method, perform, sync_method
from perdure.request.times import from_us
from perdure.store.store import Store

if TYPE_CHECKING:
    from perdure.app import App

NAMED = 3
"""The most steps that an error names."""


class StartedWorkflow:
    """One workflow, as it was when last read; ``refresh`` reads it again."""

    def __init__(self, app: App, row: WorkflowRow, *, created: bool = False) -> None:
        self._app = app
        self._row = row
        self.id = row.id
        self.created = created

    def __repr__(self) -> str:
        return f"<Workflow {self.id} {self.name} {self.status}>"

    @property
    def store(self) -> Store:
        return self._app.store

    @property
    def row(self) -> WorkflowRow:
        """The whole stored row, as it was when last read."""
        return self._row

    @property
    def name(self) -> str:
        return self._row.name

    @property
    def status(self) -> Status:
        return self._row.status

    @property
    def run(self) -> int:
        return self._row.run

    @property
    def tenant(self) -> str | None:
        return self._row.tenant

    @property
    def reason(self) -> str | None:
        return self._row.reason

    @property
    def created_at(self) -> datetime:
        return from_us(self._row.created_at)

    @property
    def finished_at(self) -> datetime | None:
        return _from_us(self._row.finished_at)

    @property
    def meta(self) -> dict[str, Any]:
        text = self._row.meta
        return {} if text is None else read_json(text, dict[str, Any])

    @property
    def result(self) -> Any:
        """The result of the step that ``result=`` names; None until that step succeeded."""
        row = self._row
        if row.result is None or row.result_task is None:
            return None
        return self._app._decode_result(row.result_task, row.result)

    def _refresh(self) -> Plan[StartedWorkflow]:
        """Read the workflow again."""
        row = yield from perform(ops.get_workflow, self.id)
        if row is None:
            raise WorkflowNotFound
        self._row = row
        return self

    def _join(self, timeout: float | timedelta | None = None) -> Plan[None]:
        """Wait until the workflow has succeeded, failed or been canceled."""
        yield from until_over(self.store, self._is_over, timeout)

    def _get(self, timeout: float | timedelta | None = None) -> Plan[Any]:
        """Wait for the workflow and return its result, or raise WorkflowFailed, WorkflowCanceled or WaitTimeout."""
        yield from self._join(timeout)
        if self.status == "failed":
            raise (yield from self._failed())
        if self.status == "canceled":
            canceled = WorkflowCanceled(f"The workflow {self.id} was canceled.")
            canceled.workflow_id = self.id
            raise canceled
        return self.result

    def _failed(self) -> Plan[WorkflowFailed]:
        """The error of the failed workflow.

        The error names the first steps that failed or were canceled. Its ``__cause__`` is the error of the first one.
        """
        spoilers = yield from perform(ops.list_spoilers, self.id, n=NAMED + 1)
        named = ", ".join(map(_failed_step, spoilers[:NAMED])) + (
            " and others" if len(spoilers) > NAMED else ""
        )
        failed = WorkflowFailed(f"The workflow {self.id} failed: {named}.")
        failed.workflow_id = self.id
        first = yield from self._app._get_jobs([one.id for one in spoilers[:1] if one.code is not None])
        failed.__cause__ = next((job._failed() for job in first if job is not None), None)
        return failed

    def _steps(self) -> Plan[list[WorkflowStep]]:
        """The steps and gates in the order they were added, with their current states."""
        graph = yield from perform(ops.get_graph, self.id)
        if graph is None:
            raise WorkflowNotFound
        self._row = graph.workflow
        return [_step(one) for one in placed(graph)]

    def _cancel(self, *, reason: str | None = None, by: str | None = None) -> Plan[Canceling]:
        """Cancel every step that has not ended; running steps are asked to stop."""
        return (yield from self._app._cancel_workflow(self.id, reason=reason, by=by))

    def _requeue(
        self,
        *,
        run: int | None = None,
        steps: Which = "following",
        reason: str | None = None,
        by: str | None = None,
    ) -> Plan[Requeuing]:
        """Start a new run of a workflow that failed or was canceled.

        ``run``: do this only if the workflow's run still has this number.
        """
        return (yield from self._app._requeue_workflow(self.id, run=run, steps=steps, reason=reason, by=by))

    def _is_over(self) -> Plan[bool]:
        return (yield from self._refresh()).status in OVER

    refresh, arefresh = sync_method(_refresh), async_method(_refresh)
    join, ajoin = sync_method(_join), async_method(_join)
    get, aget = sync_method(_get), async_method(_get)
    steps, asteps = sync_method(_steps), async_method(_steps)
    cancel, acancel = sync_method(_cancel), async_method(_cancel)
    requeue, arequeue = sync_method(_requeue), async_method(_requeue)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowStep:
    """A step of a started workflow, as it was when listed. ``app.get_job(step.id)`` returns the whole job."""

    key: str
    id: str
    """The id of the step's job."""
    task: str | None
    """None for a gate."""
    queue: str
    state: State
    run: int
    attempt: int
    max_attempts: int
    after: list[str]
    after_done: list[str]
    waits_for: list[str]
    """The parents that have not ended."""
    reason: str | None
    error: JobError | None
    """The error of the last failed attempt, without a traceback."""
    created_at: datetime
    run_at: datetime
    """The time from which the step may run; for an open gate with a timeout, the end of the timeout."""
    started_at: datetime | None
    finished_at: datetime | None

    @property
    def gate(self) -> bool:
        return self.task is None


class Placed(NamedTuple):
    """A stored step and its place in the graph. ``waits_for``: the parents that have not ended."""

    row: StepRow
    shape: Shape
    waits_for: list[str]


def placed(graph: Graph) -> Iterator[Placed]:
    rows = {step.id: step for step in graph.steps}
    parents: dict[str, dict[str, list[StepRow]]] = {}
    for parent, child, mode in graph.edges:
        parents.setdefault(child, {"after": [], "after_done": []})[mode].append(rows[parent])
    for step in graph.steps:
        own = parents.get(step.id, {"after": [], "after_done": []})
        both = [*own["after"], *own["after_done"]]
        shape = Shape(
            step.key,
            [parent.key for parent in own["after"]],
            [parent.key for parent in own["after_done"]],
            gate=step.task == GATE,
        )
        open_ones = [parent.key for parent in both if parent.finished_at is None]
        yield Placed(step, shape, open_ones if step.state == "waiting" else [])


def _step(one: Placed) -> WorkflowStep:
    row, shape, waits_for = one
    error = None
    if row.error_kind is not None:
        error = JobError(row.error_kind, row.error_code or "", row.error_message or "", None)
    return WorkflowStep(
        key=row.key,
        id=row.id,
        task=None if shape.gate else row.task,
        queue=row.queue,
        state=row.state,
        run=row.run,
        attempt=row.attempt,
        max_attempts=row.max_attempts,
        after=[*shape.after],
        after_done=[*shape.after_done],
        waits_for=waits_for,
        reason=row.reason,
        error=error,
        created_at=from_us(row.created_at),
        run_at=from_us(row.run_at),
        started_at=_from_us(row.started_at),
        finished_at=_from_us(row.finished_at),
    )


def _failed_step(one: Spoiler) -> str:
    if one.state == "canceled":
        return f"{one.key} was canceled"
    # A gate has no error.
    return f"{one.key} failed" + (f" ({one.code})" if one.code else "")


def _from_us(at: Instant | None) -> datetime | None:
    return None if at is None else from_us(at)
