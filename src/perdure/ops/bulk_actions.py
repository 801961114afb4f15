"""Bulk actions: the actions of job_actions.py, performed on batches of jobs that a filter found.

Each batch is a transaction of its own. It checks each job again once the job is locked. A job that no longer matches
the filter or the action is left alone. A job that another transaction has locked is skipped, and the caller retries it.
The lock order is the same as everywhere: workflows by id, then jobs by id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Literal, NamedTuple, TypeAlias

from perdure.model.job import Instant, Span, State
from perdure.model.visible_state import VISIBLE_STATES, VisibleState
from perdure.ops.audit import act, amend, as_json
from perdure.ops.batch import rows_of
from perdure.ops.find import LAST, Found, ScanRange, find
from perdure.ops.job_actions import delete_all
from perdure.ops.op import Op, Operation, Query, ask, ask_all, operation
from perdure.ops.release import End, Tallies, release
from perdure.ops.topics import ENDED, queue_topics, worker_topic
from perdure.request.filter import Changeable, Filter

BATCH = 500
"""Jobs per transaction. With so few jobs, no other transaction waits long for their row locks."""

Outcome: TypeAlias = Literal[
    "canceled",
    "cancel_requested",
    "requeued",
    "due_now",
    "deleted",
    "unique_key_taken",
    "is_a_step",
    "locked",
]
"""The outcome for one job, named as in the actions on one job.

``locked``: another transaction kept the row locked until we gave up.
"""
Counts: TypeAlias = Counter[Outcome]
_REFUSED: frozenset[Outcome] = frozenset(("unique_key_taken", "is_a_step", "locked"))


class BulkProgress(NamedTuple):
    """The progress of a bulk action. ``act``: the id of its audit row; None until the action has changed a job."""

    action: str
    filter: Filter
    counts: Counts
    reason: str | None = None
    by: str | None = None
    keep_checkpoint: bool = False
    keep_key: Span | None = None
    act: int | None = None


class Batch(NamedTuple):
    """The progress after this batch, and the jobs that other transactions have locked."""

    bulk: BulkProgress
    locked: list[Found]


class Locked(NamedTuple):
    """A job that its batch has locked."""

    id: str
    state: State
    due: bool
    held: str | None
    error_kind: str | None
    error_code: str | None
    finished_at: Instant | None
    run: int
    token: int
    worker: str | None
    unique_key: str | None
    task: str
    tenant: str
    workflow: str | None

    @property
    def changeable(self) -> Changeable:
        return Changeable(*self[1:7])


class BulkAction(NamedTuple):
    """A bulk action: its operation, the states it acts on, the outcome for a dry run, and whether it acts on steps."""

    batch: Operation[[Sequence[Found], BulkProgress], Batch]
    takes: tuple[VisibleState, ...]
    expected: Callable[[State], Outcome]
    steps: bool = False


@operation("read")
def look(filter: Filter, *, among: Sequence[VisibleState], before: str = LAST, length: int) -> Op[ScanRange]:
    """All matching jobs of a scan range, newest first."""
    return (yield from find(filter, among=among, before=before, length=length, n=length))


@operation("write")
def cancel_batch(jobs: Sequence[Found], bulk: BulkProgress) -> Op[Batch]:
    tallies, busy = yield from _lock_workflows(jobs)
    taken, locked = yield from _lock(jobs, bulk, CANCEL.takes, but=busy)
    stop = Query("cancel_jobs", {"ids": _ids(taken), "reason": bulk.reason})
    wake = _cancel_topics(taken)
    ends = {
        job.id: End(job.workflow, job.state, "canceled")
        for job in taken
        if job.workflow is not None and job.state != "running"
    }
    if ends:
        wake |= (yield from release(tallies, ends, stop)).wake
    events = _events(taken, lambda job: "cancel requested" if job.state == "running" else "canceled", bulk)
    outcomes = Counts(_canceled(job.state) for job in taken)
    writes = [*([] if ends else [stop]), events, *tallies.settle()]
    return (yield from _end(bulk, outcomes, locked, writes, wake))


@operation("write")
def requeue_batch(jobs: Sequence[Found], bulk: BulkProgress) -> Op[Batch]:
    taken, locked = yield from _lock(jobs, bulk, REQUEUE.takes)
    free = yield from _with_free_keys(taken)
    ids = _ids(free)
    _, _, rows = yield from ask_all(
        Query("record_last_attempts", {"ids": ids}),
        Query(
            "record_requeues",
            {
                "ids": ids,
                "reason": bulk.reason,
                "by": bulk.by,
                "keep_checkpoint": int(bulk.keep_checkpoint),
            },
        ),
        Query("requeue_jobs", {"ids": ids, "keep_checkpoint": int(bulk.keep_checkpoint)}),
    )
    outcomes = Counts({"requeued": len(free), "unique_key_taken": len(taken) - len(free)})
    return (yield from _end(bulk, outcomes, locked, [], queue_topics(queue for (queue,) in rows)))


@operation("write")
def run_now_batch(jobs: Sequence[Found], bulk: BulkProgress) -> Op[Batch]:
    taken, locked = yield from _lock(jobs, bulk, RUN_NOW.takes)
    rows, _ = yield from ask_all(
        Query("run_jobs_now", {"ids": _ids(taken)}), _events(taken, lambda _: "run now", bulk)
    )
    outcomes = Counts({"due_now": len(taken)})
    return (yield from _end(bulk, outcomes, locked, [], queue_topics(queue for (queue,) in rows)))


@operation("write")
def delete_batch(jobs: Sequence[Found], bulk: BulkProgress) -> Op[Batch]:
    taken, locked = yield from _lock(jobs, bulk, DELETE.takes)
    running = [job for job in taken if job.state == "running"]
    still = [job.id for job in taken if job.state != "running"]
    outcomes = Counts({"deleted": len(still), "cancel_requested": len(running)})
    writes = [
        Query("cancel_jobs", {"ids": _ids(running), "reason": "deleted"}),
        _events(running, lambda _: "cancel requested", bulk._replace(reason="deleted")),
        *delete_all(still, bulk.keep_key),
    ]
    return (yield from _end(bulk, outcomes, locked, writes, _cancel_topics(running)))


def _lock_workflows(jobs: Sequence[Found]) -> Op[tuple[Tallies, set[str]]]:
    """Lock the workflows of steps. Also return the steps whose workflow another transaction has locked."""
    steps = [job.id for job in jobs if job.workflow is not None]
    if not steps:
        return Tallies(), set()
    leases = rows_of([[id] for id in steps])
    (rows,) = yield from ask_all(Query("lock_workflows_skipping_locked", {"leases": leases}, only="server"))
    busy = {id for (id,) in rows}
    ours = [[id] for id in steps if id not in busy]
    return Tallies((yield from ask("lock_workflows_of", leases=rows_of(ours)))), busy


def _lock(
    jobs: Sequence[Found], bulk: BulkProgress, takes: Collection[VisibleState], *, but: Collection[str] = ()
) -> Op[tuple[list[Locked], list[Found]]]:
    """Lock jobs. Return the jobs that still match, newest first, and the jobs that other transactions have locked."""
    rows = yield from ask("lock_jobs", ids=rows_of(sorted(job.id for job in jobs if job.id not in but)))
    held = {*but, *(id for id, free, *_ in rows if not free)}
    taken = [Locked(id, *job) for id, free, *job in sorted(rows, reverse=True) if free]
    fit = [
        job
        for job in taken
        if job.changeable.visible_state in takes and bulk.filter.still_fits(job.changeable)
    ]
    return fit, [job for job in jobs if job.id in held]


def _with_free_keys(jobs: Sequence[Locked]) -> Op[list[Locked]]:
    """The jobs whose unique key no active job has. If two jobs have the same key, only the first is returned."""
    keyed = _ids([job for job in jobs if job.unique_key is not None])
    if keyed == "[]":
        return [*jobs]
    _, rows = yield from ask_all(
        Query("expire_key_holders", {"ids": keyed}), Query("find_taken_keys", {"ids": keyed})
    )
    taken = {id for (id,) in rows}
    scopes: set[tuple[str, str, str]] = set()
    free: list[Locked] = []
    for job in jobs:
        scope = (job.task, job.tenant, job.unique_key or job.id)
        if job.id not in taken and scope not in scopes:
            scopes.add(scope)
            free.append(job)
    return free


def _end(
    bulk: BulkProgress,
    outcomes: Counts,
    locked: list[Found],
    writes: Sequence[Query],
    wake: frozenset[str],
) -> Op[Batch]:
    """Write the changes of this batch and update the audit row, in one transaction."""
    counts = bulk.counts + outcomes
    if not (+outcomes).keys() - _REFUSED:
        yield from ask_all(final=True)
        return Batch(bulk._replace(counts=counts), locked)
    detail = {"filter": bulk.filter.as_dict(), "reason": bulk.reason, "counts": counts}
    note = act(bulk.action, "jobs", bulk.by, **detail) if bulk.act is None else amend(bulk.act, **detail)
    *_, rows = yield from ask_all(*writes, note, final=True, wake=wake)
    id = rows[0][0] if bulk.act is None else bulk.act
    return Batch(bulk._replace(act=id, counts=counts), locked)


def _events(jobs: Sequence[Locked], kind: Callable[[Locked], str], bulk: BulkProgress) -> Query:
    detail = as_json({"reason": bulk.reason, "by": bulk.by})
    events = [
        {"id": job.id, "run": job.run, "token": job.token, "kind": kind(job), "detail": detail}
        for job in jobs
    ]
    return Query("record_events", {"events": rows_of(events)})


def _cancel_topics(jobs: Sequence[Locked]) -> frozenset[str]:
    """The topics of canceled jobs.

    They wake the workers that run these jobs, and the callers that wait for their end.
    """
    return frozenset(ENDED if job.worker is None else worker_topic(job.worker) for job in jobs)


def _ids(jobs: Sequence[Locked]) -> str:
    return rows_of(sorted(job.id for job in jobs))


def _canceled(state: State) -> Outcome:
    return "cancel_requested" if state == "running" else "canceled"


def _deleted(state: State) -> Outcome:
    return "cancel_requested" if state == "running" else "deleted"


_ACTIVE: tuple[VisibleState, ...] = (
    *("waiting", "ready", "scheduled", "retrying", "held", "running", "open"),
)

CANCEL = BulkAction(cancel_batch, _ACTIVE, _canceled, steps=True)
REQUEUE = BulkAction(requeue_batch, ("failed", "canceled"), lambda _: "requeued")
RUN_NOW = BulkAction(run_now_batch, ("scheduled", "retrying"), lambda _: "due_now")
DELETE = BulkAction(delete_batch, VISIBLE_STATES, _deleted)
