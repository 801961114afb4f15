"""Actions of an operator on a workflow: cancel it, requeue it, resolve a gate."""

from __future__ import annotations

from typing import Literal, TypeAlias

from perdure.errors import GateConflict, GateRefused, WorkflowNotFound
from perdure.model.canonical import read_json, same
from perdure.model.graph import GATE, OVER, Fate, Tally, Which, requeued
from perdure.model.job import ENDED as OVER_JOBS
from perdure.model.job import NewWorkflow, State
from perdure.ops.audit import act, as_json
from perdure.ops.batch import rows_of
from perdure.ops.op import Op, Query, Rows, ask_all, operation
from perdure.ops.release import End, Tallies, release
from perdure.ops.topics import ENDED, queue_topics, worker_topic
from perdure.ops.workflow import StepRow, WorkflowRow, insert_workflow

Canceling: TypeAlias = Literal["canceled", "cancel_requested", "already_ended"]
Requeuing: TypeAlias = Literal[
    "requeued", "not_ended", "already_succeeded", "other_run", "nothing_to_requeue", "unique_key_taken"
]
Resolution: TypeAlias = Literal["succeeded", "failed", "canceled"]


@operation("write")
def cancel_workflow(workflow: str, *, reason: str | None = None, by: str | None = None) -> Op[Canceling]:
    """Cancel every step that has not ended. Running steps are asked to stop, and the workflow ends when they end."""
    tallies = yield from _lock(workflow)
    tally = tallies[workflow]
    if tally.status in OVER:
        return "already_ended"
    why = reason or "its workflow was canceled"
    _, _, running = yield from ask_all(
        Query("cancel_workflow", {"workflow": workflow, "reason": reason}),
        Query("cancel_steps", {"workflow": workflow, "reason": why}),
        Query("stop_steps", {"workflow": workflow, "reason": why}),
    )
    _cancel_all(tally, running=len(running))
    wake = frozenset(worker_topic(worker) for (worker,) in running) | {ENDED}
    outcome: Canceling = "cancel_requested" if running else "canceled"
    done = act("cancel_workflow", f"workflow {workflow}", by, outcome=outcome, reason=reason)
    yield from ask_all(*tallies.settle(), done, final=True, wake=wake)
    return outcome


@operation("write")
def resolve_gate(
    workflow: str,
    key: str,
    resolution: Resolution,
    *,
    output: str | None = None,
    reason: str | None = None,
    by: str | None = None,
) -> Op[bool]:
    """Resolve an open gate; return whether this changed it. The same resolution again changes nothing.

    A different resolution is a conflict.
    """
    tallies = yield from _lock(workflow)
    (gates,) = yield from ask_all(Query("find_step", {"workflow": workflow, "key": key}))
    if not gates:
        raise GateRefused(f"The workflow has no step {key}.", code="workflow.gate_not_found")
    ((id, state, task, result, old_reason, run, token),) = gates
    if task != GATE:
        raise GateRefused(f"The step {key} is not a gate: a worker runs it.", code="workflow.gate_not_gate")
    if state in OVER_JOBS:
        _compare(key, (state, old_reason), (resolution, reason), result, output)
        return False
    if state != "open":
        raise GateRefused(f"The gate {key} is not open yet: steps before it have not ended.")
    write = Query("resolve_gate", {"id": id, "resolution": resolution, "result": output, "reason": reason})
    _, wake, _ = yield from release(tallies, {id: End(workflow, "open", resolution)}, write)
    detail = as_json({"reason": reason, "by": by})
    event = Query(
        "record_event", {"id": id, "run": run, "token": token, "kind": resolution, "detail": detail}
    )
    done = act("resolve_gate", f"workflow {workflow}", by, gate=key, resolution=resolution, reason=reason)
    yield from ask_all(*tallies.settle(), event, done, final=True, wake=wake | {ENDED})
    return True


@operation("write")
def requeue_workflow(
    workflow: str,
    *,
    stand_in: str,
    run: int | None = None,
    steps: Which = "following",
    reason: str | None = None,
    by: str | None = None,
) -> Op[Requeuing]:
    """Start a new run of the chosen steps of a workflow that failed or was canceled.

    ``stand_in``: a new id, see ``_taken``. ``run``: the number of the run that the caller saw. If the workflow has
    another run now, the call is refused.
    """
    tallies = yield from _lock(workflow)
    tally = tallies[workflow]
    if tally.status not in OVER:
        return "not_ended"
    if tally.status == "succeeded":
        return "already_succeeded"
    (found,) = yield from ask_all(Query("get_workflow", {"id": workflow}))
    row = WorkflowRow(*found[0])
    if run not in (None, row.run):
        return "other_run"
    if (yield from _taken(row, stand_in)):
        return "unique_key_taken"
    rows, edges = yield from ask_all(
        Query("list_steps", {"workflow": workflow}), Query("list_edges", {"workflow": workflow})
    )
    fates = _begin_again([StepRow(*row) for row in rows], edges, steps)
    if not fates:
        return "nothing_to_requeue"
    before: dict[str, State] = {row[0]: row[4] for row in rows}
    for id, fate in fates.items():
        tally.move(before[id], fate.state)
    ids = rows_of([*fates])
    _, _, _, ready = yield from ask_all(
        Query("record_last_attempts", {"ids": ids}),
        Query("record_requeues", {"ids": ids, "reason": reason, "by": by, "keep_checkpoint": 0}),
        Query("restart_workflow", {"workflow": workflow}),
        Query("requeue_steps", {"fates": rows_of([*fates.values()])}),
    )
    wake = queue_topics(queue for state, queue in ready if state == "ready")
    tally.canceling = False
    done = act("requeue_workflow", f"workflow {workflow}", by, steps=steps, reason=reason)
    yield from ask_all(*tallies.settle(), done, final=True, wake=wake)
    return "requeued"


def _lock(workflow: str) -> Op[Tallies]:
    (rows,) = yield from ask_all(Query("lock_workflows", {"ids": rows_of([workflow])}))
    if not rows:
        raise WorkflowNotFound
    return Tallies(rows)


def _cancel_all(tally: Tally, *, running: int) -> None:
    """Update the counts: every step that has not ended is canceled, except the running steps."""
    tally.spoiled += tally.waiting + tally.open + tally.active - running
    tally.waiting, tally.open, tally.active = 0, 0, running
    tally.canceling = True


def _compare(
    key: str,
    before: tuple[str, str | None],
    now: tuple[str, str | None],
    result: str | None,
    output: str | None,
) -> None:
    """Raise GateConflict if the gate was resolved in another way before."""
    if before != now:
        state, old_reason = before
        ended = "was canceled" if state == "canceled" else f"has {state}"
        reason = "without a reason" if old_reason is None else f"with the reason: {old_reason}"
        raise GateConflict(f"The gate {key} {ended} already, {reason}.")
    if not same(*(None if one is None else read_json(one) for one in (result, output))):
        raise GateConflict(
            f"The gate {key} was resolved with another output.", code="workflow.gate_conflicting_output_retry"
        )


def _taken(row: WorkflowRow, stand_in: str) -> Op[bool]:
    """Whether another active workflow has the unique key of this workflow.

    To find out, insert a row with the key and the id ``stand_in``, as a start does, and delete it at once. The insert
    makes concurrent calls wait for each other.
    """
    if row.unique_key is None:
        return False
    new = NewWorkflow(id=stand_in, name=row.name, tenant=row.tenant, unique_key=row.unique_key)
    inserted, _ = yield from ask_all(
        insert_workflow(new, ["ready"]), Query("delete_workflow", {"id": stand_in})
    )
    return not inserted


def _begin_again(steps: list[StepRow], edges: Rows, which: Which) -> dict[str, Fate]:
    """The states in which the chosen steps begin their new run. All other steps have ended and stay unchanged."""
    states: dict[str, tuple[State, bool]] = {step.id: (step.state, step.unsatisfied > 0) for step in steps}
    gates = {step.id for step in steps if step.task == GATE}
    chosen = requeued(states, ((parent, child) for parent, child, _ in edges), which)
    while True:
        pending, unsatisfied = dict.fromkeys(chosen, 0), dict.fromkeys(chosen, 0)
        for parent, child, mode in edges:
            if child in chosen:
                pending[child] += parent in chosen
                unsatisfied[child] += (
                    parent not in chosen and mode == "after" and states[parent][0] != "succeeded"
                )
        # Leave out steps that could never run, because a parent that stays unchanged has not succeeded.
        stuck = {id for id in chosen if unsatisfied[id] and not pending[id]}
        if not stuck:
            break
        chosen -= stuck
    return {
        id: Fate(
            id, "waiting" if pending[id] else "open" if id in gates else "ready", pending[id], unsatisfied[id]
        )
        for id in sorted(chosen)
    }
