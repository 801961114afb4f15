"""Append steps to a running workflow: from outside while a gate is open, or by one of its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from msgspec.structs import replace

from perdure.errors import AppendConflict, AppendRefused, LeaseLost, WorkflowNotFound
from perdure.model.canonical_workflow import append_difference, appended_again, canonical_append
from perdure.model.graph import GATE, OVER, Parent, Shape, check, foreign_references, no_ancestor
from perdure.model.job import Lease
from perdure.model.new_steps import NewSteps
from perdure.ops.batch import rows_of
from perdure.ops.insert_steps import insert_steps
from perdure.ops.isolation import SHOW_ISOLATION, require_read_committed
from perdure.ops.op import Op, Query, ask, ask_all, operation
from perdure.ops.release import Tallies
from perdure.ops.topics import queue_topics

AppendOutcome: TypeAlias = Literal["applied", "already_applied"]


@operation("write")
def append_steps(
    workflow: str,
    *,
    window: str,
    mutation_key: str,
    appended: NewSteps,
) -> Op[AppendOutcome]:
    """Add steps while the gate ``window`` is open.

    The mutation key is looked up before the gate, so a retry of an applied append succeeds even if the gate has closed.
    """
    isolation, rows, applied, gates = yield from ask_all(
        SHOW_ISOLATION,
        Query("lock_workflows", {"ids": rows_of([workflow])}),
        Query("find_mutation", {"workflow": workflow, "key": mutation_key}),
        Query("find_step", {"workflow": workflow, "key": window}),
    )
    require_read_committed(isolation)
    if not rows:
        raise WorkflowNotFound
    tallies = Tallies(rows)
    tenant = tallies.tenants[workflow]
    request = canonical_append(appended.requests, tenant=tenant, window=window)
    for (stored,) in applied:
        field = append_difference(stored, request, tenant=tenant)
        if field is not None:
            conflict = AppendConflict(f"The mutation key was used for a different append: {field} differs.")
            conflict.field = field
            raise conflict
        return "already_applied"
    _refuse(tallies, workflow, window, [(row[1], row[2]) for row in gates])
    writes, wake, _ = yield from add_steps(tallies, workflow, appended)
    mutation = Query("insert_mutation", {"workflow": workflow, "key": mutation_key, "request": request})
    yield from ask_all(*writes, mutation, *tallies.settle(), final=True, wake=wake)
    return "applied"


@operation("write", priority="urgent")
def append_under(lease: Lease, workflow: str, appended: NewSteps) -> Op[list[str]]:
    """Add steps now on behalf of a running step, if its lease still holds; return the ids of the new steps."""
    rows, held = yield from ask_all(
        Query("lock_workflows", {"ids": rows_of([workflow])}),
        Query("lock_running", {"leases": rows_of([lease])}),
    )
    if not held:
        raise LeaseLost
    tallies = Tallies(rows)
    writes, wake, ids = yield from add_steps(tallies, workflow, appended, by=lease.job)
    yield from ask_all(*writes, *tallies.settle(), final=True, wake=wake)
    return ids


class AddedSteps(NamedTuple):
    """The statements that write new steps, the topics to announce, and the ids of all requested steps."""

    writes: list[Query]
    wake: frozenset[str]
    ids: list[str]


def add_steps(
    tallies: Tallies, workflow: str, appended: NewSteps, *, by: str | None = None
) -> Op[AddedSteps]:
    """Add steps to a locked workflow. A parent may be in any state.

    ``by``: the step that appends them. If that step runs again, the steps of its earlier attempts exist already.
    """
    keys = {step.step_key for step in appended.steps}
    parents = {key for shape in appended.shapes for key in shape.parents}
    found = yield from ask("find_steps", workflow=workflow, keys=rows_of(sorted(parents | keys)))
    known = {key: Parent(id, state) for key, id, state in found}
    ids = [known[step.step_key].id if step.step_key in known else step.id for step in appended.steps]
    mutation: list[Query] = []
    if by is not None:
        if keys & known.keys():
            appended = yield from _not_yet_appended(tallies, workflow, appended, by)
            if not appended.steps:
                return AddedSteps([], frozenset(), ids)
        request = canonical_append(appended.requests, tenant=tallies.tenants[workflow])
        # This key never equals a user's key, because it contains a new id.
        key = f"{by}/{appended.steps[0].id}"
        mutation = [Query("insert_mutation", {"workflow": workflow, "key": key, "request": request})]
    tenant = tallies.tenants[workflow]
    steps = {step.step_key: replace(step, tenant=step.tenant or tenant) for step in appended.steps}
    ordered = check(appended.shapes, known.__contains__)
    yield from _check_references(ordered, known)
    tally = tallies[workflow]
    writes, initial = insert_steps(ordered, steps, known, canceled=tally.canceling)
    for begins in initial.values():
        tally.move(None, begins.state)
    tallies.added[workflow] = tallies.added.get(workflow, 0) + len(steps)
    ready = [key for key, begins in initial.items() if begins.state == "ready"]
    wake = queue_topics(queue for key in ready if (queue := steps[key].queue) is not None)
    return AddedSteps([*writes, *mutation], wake, ids)


def _not_yet_appended(tallies: Tallies, workflow: str, appended: NewSteps, by: str) -> Op[NewSteps]:
    """Leave out the steps that an earlier attempt appended. Those steps must equal the steps requested now."""
    tenant = tallies.tenants[workflow]
    rows = yield from ask("find_appended", workflow=workflow, prefix=f"{by}/")
    there, field = appended_again(
        [row[0] for row in rows], canonical_append(appended.requests, tenant=tenant), tenant=tenant
    )
    if field is not None:
        conflict = AppendConflict(
            f"An earlier attempt appended a different step with the same key: {field} differs."
        )
        conflict.field = field
        raise conflict
    return NewSteps(
        tuple(shape for shape in appended.shapes if shape.key not in there),
        tuple(step for step in appended.steps if step.step_key not in there),
        tuple(request for request in appended.requests if request.key not in there),
    )


def _check_references(ordered: Sequence[Shape], known: Mapping[str, Parent]) -> Op[None]:
    """Refuse references to steps that are not ancestors. An ancestor may also be an existing step."""
    for step, key, before in foreign_references(ordered):
        ids = [known[one].id for one in sorted(before)]
        rows = yield from ask("list_ancestors", ids=rows_of(ids))
        if key not in {row[0] for row in rows}:
            raise no_ancestor(step.key, key)


def _refuse(tallies: Tallies, workflow: str, window: str, gates: Sequence[tuple[str, str]]) -> None:
    tally = tallies[workflow]
    if tally.status in OVER or tally.canceling:
        raise AppendRefused(
            "The workflow has ended, or is being canceled: no steps can be added.",
            code="workflow.append_terminal_workflow",
        )
    if not gates:
        raise AppendRefused(f"The workflow has no step {window}.", code="workflow.append_window_missing")
    ((state, task),) = gates
    if task != GATE:
        raise AppendRefused(f"The step {window} is not a gate.", code="workflow.append_window_not_gate")
    if state != "open":
        raise AppendRefused(f"The gate {window} is not open: it is {state}.")
