"""Replay: make a new job from a job that succeeded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from perdure.errors import Refused
from perdure.model.advice import advise
from perdure.model.canonical import canonical_replay
from perdure.model.job import STORED_AS_GIVEN, JobRow, NewJob
from perdure.ops.batch import CHUNK
from perdure.ops.enqueue import Enqueued, put
from perdure.ops.find import LAST, find
from perdure.ops.job_actions import Locked
from perdure.ops.op import Op, Query, ask, ask_all, ask_last, operation
from perdure.ops.topics import queue_topics
from perdure.request.filter import Filter

COPIED = ("task", "queue", "payload", *STORED_AS_GIVEN, "priority", "max_attempts", "unique_key")
"""The fields that a replay copies, in the order of the columns of ``find_source``."""


@operation("read")
def find_task_of(id: str) -> Op[str | None]:
    rows = yield from ask_last("find_source", id=id)
    return rows[0][0] if rows else None


@operation("read")
def find_replay_of(id: str, *, request_key: str) -> Op[tuple[str, Enqueued] | tuple[None, None]]:
    """Find the replay of a job that has been deleted; return the replay's task, and the answer for the caller.

    A key belongs to a task and a tenant. The task and tenant of the deleted job are unknown, so all jobs with the key
    are searched.
    """
    edge: str | None = LAST
    while edge is not None:
        filter = Filter(idempotency_key=request_key)
        jobs, edge = yield from find(filter, before=edge, length=CHUNK, n=CHUNK)
        answers = yield from ask_all(*(Query("find_replay", {"id": job.id}) for job in jobs))
        for job, rows in zip(jobs, answers, strict=True):
            if rows and rows[0][0] == id:
                (found,) = yield from ask_last("get_job", id=job.id)
                row = JobRow(*found)
                return row.task, Enqueued(row.id, False, row.queue, row.state, row.run, row.attempt)
    yield from ask_all(final=True)
    return None, None


@operation("write")
def replay(
    id: str, new: str, *, request_key: str | None, reason: str | None, by: str | None
) -> Op[Enqueued | None]:
    """Enqueue a copy of a job that succeeded; return None if there is no such job.

    The request key is the new job's idempotency key. The key is looked up before the insert, so a retry of this call
    succeeds even if the task was disabled meanwhile.
    """
    locked, found = yield from ask_all(Query("lock_job", {"id": id}), Query("find_source", {"id": id}))
    if not found:
        return None
    job, source = Locked(*locked[0]), dict(zip(COPIED, found[0], strict=True))
    _refuse(id, job)
    (outcome,), queues = yield from put([_like(source, id, new, request_key)])
    if not outcome.created:
        yield from _refuse_another(id, outcome)
        return outcome
    yield from ask_all(
        Query("mark_replay", {"id": new, "source": id}),
        _event(id, job, {"as": new, "reason": reason, "by": by}),
        final=True,
        wake=queue_topics(queues),
    )
    return outcome


def _refuse(id: str, job: Locked) -> None:
    if job.workflow is not None:
        message = "This job is the step {step} of a workflow: {start_another}."
        raise Refused(advise(message, step=job.step), code="job.is_a_step")
    if job.state != "succeeded":
        ended = job.state in ("failed", "canceled")
        cure = "{requeue_job} starts a new run of it" if ended else "it has not ended yet"
        message = f"Only a job that succeeded can be replayed, and this one is {job.state}: {cure}."
        raise Refused(advise(message, id=id), code="job.not_succeeded")


def _like(source: Mapping[str, Any], id: str, new: str, request_key: str | None) -> NewJob:
    return NewJob(
        id=new,
        **source,
        idempotency_key=request_key,
        request=None if request_key is None else canonical_replay(id),
    )


def _refuse_another(id: str, outcome: Enqueued) -> Op[None]:
    """Refuse if the unique key belongs to an unrelated job, which must not be mistaken for the replay."""
    rows = yield from ask("find_replay", id=outcome.id)
    if rows and rows[0][0] != id:
        raise Refused(
            f"Job {outcome.id} has its unique key and is {outcome.state}: wait until it ends, or cancel it.",
            code="job.unique_key_taken",
        )


def _event(id: str, job: Locked, detail: dict[str, str | None]) -> Query:
    known = msgspec.json.encode({name: value for name, value in detail.items() if value is not None})
    return Query(
        "record_event",
        {"id": id, "run": job.run, "token": job.token, "kind": "replayed", "detail": known.decode()},
    )
