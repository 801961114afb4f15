"""A workflow in the caller's hands."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.errors import WorkflowCanceled, WorkflowFailed, WorkflowNotFound
from perdure.handle import until_over
from perdure.model.graph import GATE, OVER, Shape, Status, Which
from perdure.model.job import Instant
from perdure.model.stored import read_json
from perdure.moments import moment
from perdure.ops import workflow as ops
from perdure.ops.steer import Canceling, Requeuing
from perdure.ops.workflow import Graph, StepRow, WorkflowRow
from perdure.store.plan import Plan, blocking, perform, waiting
from perdure.store.store import Store

if TYPE_CHECKING:
    from perdure.app import App


class StartedWorkflow:
    """One workflow, as it was when last looked at: ``refresh`` looks again."""

    def __init__(self, app: App, row: WorkflowRow | None, id: str, *, created: bool = False) -> None:
        self._app = app
        self._row = row
        self.id = id
        self.created = created

    def __repr__(self) -> str:
        return f"<Workflow {self.id} {self.name} {self.status}>"

    @property
    def store(self) -> Store:
        return self._app.store

    @property
    def row(self) -> WorkflowRow | None:
        """Everything that is stored, as it was when last looked at."""
        return self._row

    @property
    def name(self) -> str | None:
        return self._row.name if self._row else None

    @property
    def status(self) -> Status | None:
        return self._row.status if self._row else None

    @property
    def run(self) -> int:
        return self._row.run if self._row else 1

    @property
    def tenant(self) -> str | None:
        return self._row.tenant if self._row else None

    @property
    def reason(self) -> str | None:
        return self._row.reason if self._row else None

    @property
    def created_at(self) -> datetime | None:
        return moment(self._row.created_at) if self._row else None

    @property
    def finished_at(self) -> datetime | None:
        at = self._row.finished_at if self._row else None
        return None if at is None else moment(at)

    @property
    def meta(self) -> dict[str, Any]:
        text = self._row.meta if self._row else None
        return {} if text is None else read_json(text, dict[str, Any])

    @property
    def result(self) -> Any:
        """What the declared step returned; None until that succeeded."""
        row = self._row
        if row is None or row.result is None or row.result_task is None:
            return None
        return self._app._decode_result(row.result_task, row.result)

    def _refresh(self) -> Plan[StartedWorkflow]:
        """Look at the workflow again."""
        self._row = yield from perform(ops.get_workflow, self.id)
        if self._row is None:
            raise WorkflowNotFound
        return self

    def _join(self, timeout: float | timedelta | None = None) -> Plan[None]:
        """Wait until the workflow is over, however it ended."""
        yield from until_over(self.store, self._is_over, timeout)

    def _get(self, timeout: float | timedelta | None = None) -> Plan[Any]:
        """Wait for the workflow and return its result, or raise WorkflowFailed, WorkflowCanceled or WaitTimeout."""
        yield from self._join(timeout)
        ended: WorkflowFailed | WorkflowCanceled
        if self.status == "canceled":
            ended = WorkflowCanceled(f"The workflow {self.id} was canceled.")
        elif self.status == "failed":
            ended = WorkflowFailed(f"The workflow {self.id} failed: its steps tell why.")
        else:
            return self.result
        ended.workflow = self.id
        raise ended

    def _steps(self) -> Plan[list[WorkflowStep]]:
        """Its steps and gates, in the order they were added, with the states they have now."""
        graph = yield from perform(ops.get_graph, self.id)
        if graph is None:
            raise WorkflowNotFound
        self._row = graph.workflow
        return [*steps_of(graph)]

    def _cancel(self, *, reason: str | None = None) -> Plan[Canceling]:
        """Cancel every step that has not ended; those that run are asked to stop."""
        return (yield from self._app._cancel_workflow(self.id, reason=reason))

    def _requeue(self, *, steps: Which = "following", reason: str | None = None) -> Plan[Requeuing]:
        """Start a new run of a workflow that failed or was canceled."""
        return (yield from self._app._requeue_workflow(self.id, steps=steps, reason=reason))

    def _is_over(self) -> Plan[bool]:
        return (yield from self._refresh()).status in OVER

    refresh, arefresh = blocking(_refresh), waiting(_refresh)
    join, ajoin = blocking(_join), waiting(_join)
    get, aget = blocking(_get), waiting(_get)
    steps, asteps = blocking(_steps), waiting(_steps)
    cancel, acancel = blocking(_cancel), waiting(_cancel)
    requeue, arequeue = blocking(_requeue), waiting(_requeue)


class WorkflowStep(NamedTuple):
    """A step of a started workflow. ``waits_for``: the parents that have not ended."""

    row: StepRow
    shape: Shape
    waits_for: list[str]
    now: Instant

    @property
    def key(self) -> str:
        return self.row.key

    @property
    def id(self) -> str:
        """Of its job: ``app.get_job(step.id)`` has the rest."""
        return self.row.id

    @property
    def state(self) -> str:
        return self.row.state

    @property
    def reason(self) -> str | None:
        return self.row.reason


def steps_of(graph: Graph) -> Iterator[WorkflowStep]:
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
        yield WorkflowStep(step, shape, open_ones if step.state == "waiting" else [], graph.now)
