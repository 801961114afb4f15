"""The read side: jobs one by one, in pages, counted, and their history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perdure.model.job import Instant, JobRow
from perdure.ops.batch import rows_of
from perdure.ops.find import LAST, find, longer
from perdure.ops.op import Op, Query, ask_all, ask_last, operation
from perdure.request.filter import EVERY, Filter


class AttemptRow(NamedTuple):
    """An attempt before the current one."""

    token: int
    run: int
    attempt: int
    kind: str
    code: str | None
    message: str | None
    trace: str | None
    worker: str | None
    started_at: Instant | None
    finished_at: Instant
    delay: int | None
    decided_by: str | None


class EventRow(NamedTuple):
    run: int
    token: int
    kind: str
    at: Instant
    detail: str | None


class LogRow(NamedTuple):
    token: int
    level: str
    message: str
    at: Instant


class Traces(NamedTuple):
    """Everything stored about one job."""

    job: JobRow
    attempts: list[AttemptRow]
    events: list[EventRow]
    logs: list[LogRow]


@operation("read")
def get_job(id: str) -> Op[JobRow | None]:
    rows = yield from ask_last("get_job", id=id)
    return JobRow(*rows[0]) if rows else None


@operation("read")
def get_jobs(ids: Sequence[str]) -> Op[list[JobRow | None]]:
    """In the order asked, None where there is none; one round trip."""
    answers = yield from ask_all(*(Query("get_job", {"id": id}) for id in ids), final=True)
    return [JobRow(*rows[0]) if rows else None for rows in answers]


@operation("read")
def list_jobs(filter: Filter = EVERY, *, before: str = LAST, n: int = 50) -> Op[list[JobRow]]:
    """A page of jobs, newest first; the next page begins before the last id of this one."""
    ids: list[str] = []
    edge: str | None = before
    length = n
    while edge is not None and len(ids) < n:
        scan = yield from find(filter, before=edge, length=length, n=n - len(ids))
        ids += [job.id for job in scan.jobs]
        edge, length = scan.end, longer(length, filter)
    rows = yield from ask_last("read_jobs", ids=rows_of(ids))
    return [JobRow(*row) for row in rows]


@operation("read")
def count_jobs(*, queue: str | None = None, tenant: str | None = None) -> Op[dict[str, dict[str, int]]]:
    """Jobs per queue and state; ``scheduled`` and ``retrying`` are apart from ``ready``."""
    rows = yield from ask_last("count_jobs", queue=queue, tenant=tenant)
    counts: dict[str, dict[str, int]] = {}
    for name, view, number, _ in rows:
        counts.setdefault(name, {})[view] = number
    return counts


@operation("read")
def oldest_ready(*, queue: str | None = None) -> Op[dict[str, Instant]]:
    """Since when each queue has had a job that could run."""
    rows = yield from ask_last("oldest_ready", queue=queue)
    return dict(rows)


@operation("read")
def trace_job(id: str) -> Op[Traces | None]:
    jobs, attempts, events, logs = yield from ask_all(
        *(Query(name, {"id": id}) for name in ("get_job", "list_attempts", "list_events", "list_logs")),
        final=True,
    )
    if not jobs:
        return None
    return Traces(
        JobRow(*jobs[0]),
        [AttemptRow(*row) for row in attempts],
        [EventRow(*row) for row in events],
        [LogRow(*row) for row in logs],
    )
