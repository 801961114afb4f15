"""Read jobs: single jobs, pages of jobs, counts, and the history of a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from perdure.errors import JobNotFound
from perdure.model.job import Instant, JobRow
from perdure.model.visible_state import LATER
from perdure.ops.batch import rows_of
from perdure.ops.find import FIRST, LAST, Due, find, find_later, longer
from perdure.ops.op import Op, Param, Query, ask, ask_all, ask_last, operation
from perdure.ops.worker import WorkerRow
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
    """All stored data about one job. ``workers``: the workers that ran the job, by id, as far as they are known."""

    job: JobRow
    attempts: list[AttemptRow]
    events: list[EventRow]
    logs: list[LogRow]
    workers: Mapping[str, WorkerRow] = MappingProxyType({})


@operation("read")
def get_job(id: str) -> Op[JobRow | None]:
    rows = yield from ask_last("get_job", id=id)
    return JobRow(*rows[0]) if rows else None


@operation("read")
def get_jobs(ids: Sequence[str]) -> Op[list[JobRow | None]]:
    """The jobs in the order of ``ids``, with None for a missing job. Takes one round trip."""
    answers = yield from ask_all(*(Query("get_job", {"id": id}) for id in ids), final=True)
    return [JobRow(*rows[0]) if rows else None for rows in answers]


@operation("read")
def list_jobs(filter: Filter = EVERY, *, before: str | None = None, n: int = 50) -> Op[list[JobRow]]:
    """A page of jobs, newest first, or soonest first if the filter's state means "not due yet".

    ``before``: the last id of the previous page.
    """
    # An idempotency key has an index of its own, and finds only a few jobs.
    if filter.state in LATER and filter.idempotency_key is None:
        ids = yield from _soonest(filter, before, n)
    else:
        ids = yield from _newest(filter, before or LAST, n)
    rows = yield from ask_last("read_jobs", ids=rows_of(ids))
    jobs = {row[0]: JobRow(*row) for row in rows}
    return [jobs[id] for id in ids if id in jobs]


def _newest(filter: Filter, before: str, n: int) -> Op[list[str]]:
    ids: list[str] = []
    edge: str | None = before
    length = n
    while edge is not None and len(ids) < n:
        scan = yield from find(filter, before=edge, length=length, n=n - len(ids))
        ids += [job.id for job in scan.jobs]
        edge, length = scan.end, longer(length, filter)
    return ids


def _soonest(filter: Filter, before: str | None, n: int) -> Op[list[str]]:
    """The ids of the jobs that become due next, after the job ``before``."""
    ids: list[str] = []
    edge: Due | None = FIRST
    length = n
    if before is not None:
        rows = yield from ask("find_run_at", id=before)
        if not rows:
            raise JobNotFound
        edge = Due(rows[0][0], before)
    while edge is not None and len(ids) < n:
        found, edge = yield from find_later(filter, behind=edge, length=length, n=n - len(ids))
        ids += found
        length = longer(length, filter)
    return ids


class JobName(NamedTuple):
    """A job that an abbreviated id may mean."""

    id: str
    task: str
    state: str
    workflow: str | None


class WorkflowName(NamedTuple):
    id: str
    name: str
    status: str


@operation("read")
def find_between(first: str, last: str, *, n: int) -> Op[tuple[list[JobName], list[WorkflowName]]]:
    """The newest n jobs, and the newest n workflows, whose ids are between ``first`` and ``last``."""
    params: dict[str, Param] = {"first": first, "last": last, "n": n}
    jobs, workflows = yield from ask_all(
        Query("find_jobs_between", params), Query("find_workflows_between", params), final=True
    )
    return [JobName(*row) for row in jobs], [WorkflowName(*row) for row in workflows]


@operation("read")
def count_jobs(*, queue: str | None = None, tenant: str | None = None) -> Op[dict[str, dict[str, int]]]:
    """Jobs per queue and visible state, without gates."""
    rows = yield from ask_last("count_jobs", queue=queue, tenant=tenant)
    counts: dict[str, dict[str, int]] = {}
    for name, state, number in rows:
        counts.setdefault(name, {})[state] = number
    return counts


@operation("read")
def oldest_ready(*, queue: str | None = None) -> Op[dict[str, Instant]]:
    """For each queue, the time since which its oldest ready job has been due."""
    rows = yield from ask_last("oldest_ready", queue=queue)
    return dict(rows)


@operation("read")
def trace_job(id: str) -> Op[Traces | None]:
    jobs, attempts, events, logs, workers = yield from ask_all(
        *(
            Query(name, {"id": id})
            for name in ("get_job", "list_attempts", "list_events", "list_logs", "list_workers_of_job")
        ),
        final=True,
    )
    if not jobs:
        return None
    return Traces(
        JobRow(*jobs[0]),
        [AttemptRow(*row) for row in attempts],
        [EventRow(*row) for row in events],
        [LogRow(*row) for row in logs],
        {row[0]: WorkerRow(*row) for row in workers},
    )
