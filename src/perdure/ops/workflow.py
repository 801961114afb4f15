"""Start and read workflows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from perdure.errors import IdempotencyConflict, InternalError
from perdure.model.canonical_workflow import workflow_difference
from perdure.model.graph import Mode, Shape, Status, Tally
from perdure.model.job import Instant, NewStep, NewWorkflow, Span, State
from perdure.ops.enqueue import PATIENCE
from perdure.ops.find import LAST
from perdure.ops.insert_steps import insert_steps
from perdure.ops.isolation import SHOW_ISOLATION, require_read_committed
from perdure.ops.op import Op, Query, ask, ask_all, ask_last, operation


class WorkflowRow(NamedTuple):
    id: str
    name: str
    tenant: str | None
    status: Status
    run: int
    waiting: int
    active: int
    open: int
    spoiled: int
    total: int
    result_step: str | None
    meta: str | None
    unique_key: str | None
    reason: str | None
    cancel_requested_at: Instant | None
    created_at: Instant
    finished_at: Instant | None
    result: str | None
    result_task: str | None


class Started(NamedTuple):
    """The answer to a start. ``created``: False if the key belongs to an existing workflow."""

    workflow: WorkflowRow
    created: bool


class StepRow(NamedTuple):
    """A step as shown in its workflow."""

    id: str
    key: str
    task: str
    queue: str
    state: State
    run: int
    attempt: int
    max_attempts: int
    run_at: Instant
    created_at: Instant
    started_at: Instant | None
    finished_at: Instant | None
    pending: int
    unsatisfied: int
    timeout: Span | None
    reason: str | None
    error_kind: str | None
    error_code: str | None
    error_message: str | None
    held: str | None


class Spoiler(NamedTuple):
    id: str
    key: str
    state: State
    code: str | None


class FailedStep(NamedTuple):
    """A step that failed. ``reason``: the reason given for a gate, or why there was no further attempt."""

    key: str
    code: str | None
    message: str | None
    reason: str | None


class Graph(NamedTuple):
    """A workflow, its steps in the order they were added, and its edges: parent, child, mode."""

    now: Instant
    workflow: WorkflowRow
    steps: list[StepRow]
    edges: list[tuple[str, str, Mode]]


@operation("write")
def start(
    workflow: NewWorkflow, ordered: Sequence[Shape], steps: Mapping[str, NewStep], wake: frozenset[str]
) -> Op[Started]:
    """Write a workflow and its steps, or find the existing workflow with its key.

    ``wake``: topics of its first steps.
    """
    writes, initial = insert_steps(ordered, steps, {})
    insert = insert_workflow(workflow, [begins.state for begins in initial.values()])
    # Read the workflow in the same transaction. If this is a caller's transaction, no other transaction can see the row
    # yet.
    look = Query("get_workflow", {"id": workflow.id})
    if not workflow.keyed:
        *_, rows = yield from ask_all(insert, *writes, look, final=True, wake=wake)
        return Started(WorkflowRow(*rows[0]), True)
    for _ in range(PATIENCE):
        isolation, inserted = yield from ask_all(SHOW_ISOLATION, insert)
        require_read_committed(isolation)
        if inserted:
            *_, rows = yield from ask_all(*writes, look, final=True, wake=wake)
            return Started(WorkflowRow(*rows[0]), True)
        found = yield from _find(workflow)
        rows = (yield from ask("get_workflow", id=found)) if found is not None else ()
        if rows:
            return Started(WorkflowRow(*rows[0]), found == workflow.id)
    raise InternalError("A key of a workflow kept appearing and vanishing.", code="workflow.key_unstable")


@operation("read")
def get_workflow(id: str) -> Op[WorkflowRow | None]:
    rows = yield from ask_last("get_workflow", id=id)
    return WorkflowRow(*rows[0]) if rows else None


@operation("read")
def list_workflows(
    *,
    name: str | None = None,
    status: Status | None = None,
    tenant: str | None = None,
    before: str = LAST,
    n: int = 50,
) -> Op[list[WorkflowRow]]:
    """A page of workflows, newest first. The last id of a page is ``before`` of the next page."""
    rows = yield from ask_last("list_workflows", name=name, status=status, tenant=tenant, before=before, n=n)
    return [WorkflowRow(*row) for row in rows]


@operation("read")
def list_spoilers(id: str, *, n: int) -> Op[list[Spoiler]]:
    """The steps that made a workflow fail. Steps that were only canceled as a consequence are left out."""
    rows = yield from ask_last("list_spoilers", workflow=id, n=n)
    return [Spoiler(*row) for row in rows]


@operation("read")
def find_failed_steps(workflows: Sequence[str]) -> Op[dict[str, FailedStep]]:
    """The first failed step of each workflow, by workflow id, in one round trip."""
    answers = yield from ask_all(
        *(Query("find_failed_step", {"workflow": id}) for id in workflows), final=True
    )
    return {id: FailedStep(*rows[0]) for id, rows in zip(workflows, answers, strict=True) if rows}


@operation("read")
def get_graph(id: str) -> Op[Graph | None]:
    # Read edges before steps: a concurrent append may then show a step without edges, but no edge without steps.
    clock, edges, steps, rows = yield from ask_all(
        Query("read_clock", {}),
        Query("list_edges", {"workflow": id}),
        Query("list_steps", {"workflow": id}),
        Query("get_workflow", {"id": id}),
        final=True,
    )
    if not rows:
        return None
    return Graph(
        clock[0][0],
        WorkflowRow(*rows[0]),
        [StepRow(*row) for row in steps],
        [(parent, child, mode) for parent, child, mode in edges],
    )


def insert_workflow(workflow: NewWorkflow, states: Sequence[State]) -> Query:
    tally = Tally(workflow.id, "running", 0, 0, 0, 0, False)
    for state, number in Counter(states).items():
        tally.move(None, state, number)
    return Query(
        "insert_workflow",
        {
            "id": workflow.id,
            "name": workflow.name,
            "tenant": workflow.tenant,
            "status": tally.settled(),
            "waiting": tally.waiting,
            "active": tally.active,
            "open": tally.open,
            "total": len(states),
            "result_step": workflow.result_step,
            "meta": workflow.meta,
            "idempotency_key": workflow.idempotency_key,
            "request": workflow.request,
            "unique_key": workflow.unique_key,
        },
    )


def _find(workflow: NewWorkflow) -> Op[str | None]:
    """The id of the existing workflow that prevents the insert; None if there is none any more.

    If an earlier try of this start was committed and its reply was lost, this is the new workflow itself. Otherwise it
    is the workflow with the same idempotency key, or the active workflow with the same unique key.
    """
    scope = {"name": workflow.name, "tenant": workflow.tenant or ""}
    mine, keyed, active = yield from ask_all(
        Query("get_workflow", {"id": workflow.id}),
        Query("find_workflow_key", {**scope, "key": workflow.idempotency_key}),
        Query("find_workflow_active", {**scope, "unique_key": workflow.unique_key}),
    )
    if mine:
        return workflow.id
    for id, request in keyed:
        field = workflow_difference(request, workflow.request or "", tenant=workflow.tenant)
        if field is not None:
            raise IdempotencyConflict(field, code="workflow.idempotency_conflict")
        return str(id)
    return str(active[0][0]) if active else None
