"""Actions of an operator on one job. Each action checks the job's state under its lock and returns what it did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from perdure.errors import Refused
from perdure.model.advice import advise
from perdure.model.job import UNCLAIMABLE, Span, State
from perdure.ops.audit import act, as_json
from perdure.ops.batch import rows_of
from perdure.ops.op import Op, Param, Query, Rows, ask, ask_all, operation
from perdure.ops.release import End, Tallies, release
from perdure.ops.topics import ENDED, queue_topics, worker_topic

CancelOutcome: TypeAlias = Literal["canceled", "cancel_requested", "already_ended", "not_found"]
RequeueOutcome: TypeAlias = Literal[
    "requeued",
    "still_running",
    "not_ended",
    "already_succeeded",
    "other_run",
    "unique_key_taken",
    "not_found",
]
RunNowOutcome: TypeAlias = Literal["due_now", "already_due", "not_ready", "not_found"]
DeleteOutcome: TypeAlias = Literal["deleted", "cancel_requested", "not_found"]


class Locked(NamedTuple):
    """A job that an operator's action has locked."""

    state: State
    run: int
    token: int
    worker: str | None
    checkpoint: str | None
    result: str | None
    unique_key: str | None
    task: str
    tenant: str
    due: bool
    workflow: str | None = None
    step: str | None = None
    held: str | None = None


@operation("write")
def cancel(id: str, *, reason: str | None = None, by: str | None = None) -> Op[CancelOutcome]:
    """Cancel a job. If it runs, ask its worker to stop it."""
    # Lock a step's workflow first: the step's end may release other steps.
    workflows, found = yield from ask_all(
        Query("lock_workflows_of", {"leases": rows_of([[id]])}), Query("lock_job", {"id": id})
    )
    if not found:
        return "not_found"
    job, tallies = Locked(*found[0]), Tallies(workflows)
    rows = yield from ask("cancel_jobs", ids=rows_of([id]), reason=reason)
    if not rows:
        return "already_ended"
    running = job.state == "running"
    wake = frozenset([worker_topic(job.worker) if job.worker else ENDED])
    event = _event(id, job, "cancel requested" if running else "canceled", reason=reason, by=by)
    if job.workflow is not None and not running:
        end = End(job.workflow, job.state, "canceled")
        wake |= (yield from release(tallies, {id: end})).wake
    yield from ask_all(event, *tallies.settle(), final=True, wake=wake)
    return "cancel_requested" if running else "canceled"


@operation("write")
def requeue(
    id: str,
    *,
    run: int | None = None,
    keep_checkpoint: bool = False,
    reason: str | None = None,
    by: str | None = None,
) -> Op[RequeueOutcome]:
    """Start a new run of a failed or canceled job.

    ``run``: the number of the run that the caller saw. If the job has another run now, the call is refused.
    """
    job = yield from _lock(id)
    if job is None:
        return "not_found"
    _refuse_step(job, "{requeue_workflow} starts a new run of its steps")
    refusal = _why_not_requeue(job, run)
    if refusal is not None:
        return refusal
    if job.unique_key is not None:
        scope = {"task": job.task, "tenant": job.tenant, "unique_key": job.unique_key}
        _, active = yield from ask_all(
            Query("expire_active", scope | {"id": id}), Query("find_active", scope)
        )
        if active:
            return "unique_key_taken"
    chosen: dict[str, Param] = {"ids": rows_of([id]), "keep_checkpoint": int(keep_checkpoint)}
    _, _, rows = yield from ask_all(
        Query("record_last_attempts", {"ids": rows_of([id])}),
        Query("record_requeues", {**chosen, "reason": reason, "by": by}),
        Query("requeue_jobs", chosen),
    )
    yield from ask_all(final=True, wake=_queues(rows))
    return "requeued"


@operation("write")
def run_now(id: str, *, by: str | None = None) -> Op[RunNowOutcome]:
    """Make a job due now. If it is held as unclaimable, workers may claim it again."""
    job = yield from _lock(id)
    if job is None:
        return "not_found"
    if job.held != UNCLAIMABLE:
        _refuse_step(
            job,
            "it runs when its parents have ended; {cancel_workflow} and {requeue_workflow} act on the whole workflow",
        )
    if job.state != "ready":
        return "not_ready"
    if job.due and job.held != UNCLAIMABLE:
        return "already_due"
    rows, _ = yield from ask_all(
        Query("run_jobs_now", {"ids": rows_of([id])}), _event(id, job, "run now", by=by)
    )
    yield from ask_all(final=True, wake=_queues(rows))
    return "due_now"


@operation("write")
def delete(
    id: str, *, keep_key: Span | None = None, reason: str | None = None, by: str | None = None
) -> Op[DeleteOutcome]:
    """Delete a job and its history. If it runs, ask its worker to stop it instead."""
    job = yield from _lock(id)
    if job is None:
        return "not_found"
    _refuse_step(job, "{cancel_workflow} ends all of its steps")
    if job.state == "running":
        yield from cancel(id, reason="deleted", by=by)
        return "cancel_requested"
    done = act("delete_job", f"job {id}", by, task=job.task, state=job.state, reason=reason)
    yield from ask_all(*delete_all([id], keep_key), done, final=True)
    return "deleted"


def delete_all(ids: Sequence[str], keep_key: Span | None) -> list[Query]:
    """The statements that delete these jobs and their history. ``keep_key``: how long to keep their keys."""
    rows = rows_of(ids)
    key = (
        Query("delete_keys", {"ids": rows})
        if keep_key is None
        else Query("keep_keys", {"ids": rows, "keep": keep_key})
    )
    return [
        key,
        *(
            Query(name, {"ids": rows})
            for name in ("delete_attempts", "delete_events", "delete_logs", "delete_jobs")
        ),
    ]


def _lock(id: str) -> Op[Locked | None]:
    rows = yield from ask("lock_job", id=id)
    return Locked(*rows[0]) if rows else None


def _refuse_step(job: Locked, instead: str) -> None:
    if job.workflow is not None:
        message = f"This job is the step {{step}} of a workflow: {instead}."
        raise Refused(advise(message, step=job.step, workflow=job.workflow), code="job.is_a_step")


def _why_not_requeue(job: Locked, run: int | None) -> RequeueOutcome | None:
    if job.state == "running":
        return "still_running"
    if job.state == "succeeded":
        return "already_succeeded"
    if job.state not in ("failed", "canceled"):
        return "not_ended"
    return "other_run" if run not in (None, job.run) else None


def _event(id: str, job: Locked, kind: str, **detail: str | None) -> Query:
    text = as_json(detail)
    return Query("record_event", {"id": id, "run": job.run, "token": job.token, "kind": kind, "detail": text})


def _queues(rows: Rows) -> frozenset[str]:
    return queue_topics(row[0] for row in rows)
