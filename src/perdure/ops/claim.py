"""Claim ready jobs."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from perdure.errors import InternalError
from perdure.model.job import Claimed, Instant
from perdure.ops.batch import rows_of
from perdure.ops.op import Op, Param, Query, RoundTrip, Row, Rows, ask_all, ask_last, operation

ID_LENGTH = 36


class ClaimWindow(NamedTuple):
    """One queue and priority that a claim scans. ``since``: only jobs due at that time or later."""

    queue: str
    priority: int
    since: Instant | None = None


class ClaimRequest(NamedTuple):
    """A request for at most n jobs of these tasks, from these queues in this order.

    ``queues``: None means all queues, as if they were one. ``window``: scan only this window, which is cheaper. Nothing
    is claimed if jobs of another queue or of a higher priority may come first. ``limits``: the version of the limits
    that the worker knows. If it is not the current version, nothing is claimed.
    """

    worker: str
    tasks: Sequence[str]
    n: int
    queues: Sequence[str] | None = None
    window: ClaimWindow | None = None
    limits: int = 0
    limited: Sequence[str] | None = None
    """If given: claim only these jobs, and of them only those that fit under their limits. The jobs after the first n
    are spare: they are claimed in place of earlier jobs that are locked or no longer due."""

    def __bool__(self) -> bool:
        return self.n > 0 and bool(self.tasks)


class Claims(NamedTuple):
    """The claimed jobs, in order, and the ids of jobs that had expired and were canceled instead.

    ``locked``: whether fewer jobs were claimed because other transactions have locked some of the first jobs.
    ``more``: whether another claim may find more jobs.
    """

    jobs: list[Claimed]
    expired: Sequence[str] = ()
    locked: bool = False
    more: bool = False


@operation("write", retries=1)
def claim(request: ClaimRequest) -> Op[Claims]:
    if not request:
        return Claims([])
    *_, rows = yield RoundTrip(claim_queries(request), final=True)
    return read_claims(rows, request)


@operation("write", retries=1)
def claim_skipping_locked(request: ClaimRequest) -> Op[Claims]:
    """Claim jobs, and skip those that other transactions have locked."""
    request = request._replace(window=None)
    query = _claim_query(request)._replace(name="claim_skipping_locked")
    (rows,) = yield RoundTrip((query,), final=True)
    return read_claims(rows, request)


@operation("read")
def find_due(request: ClaimRequest, *, n: int, skip: int = 0) -> Op[list[str]]:
    """The ids of the first n jobs of each queue that this claim would scan, in the order of the claim.

    Their values, which may be damaged, are not read. ``skip``: leave out this many jobs of each queue.
    """
    (rows,) = yield from ask_all(Query("list_due_queues", {}))
    found = [queue for (queue,) in rows]
    queues = found if request.queues is None else [queue for queue in request.queues if queue in found]
    tasks = rows_of(list(request.tasks))
    answers = yield from ask_all(
        *(Query("find_due", {"queue": queue, "tasks": tasks, "n": n, "skip": skip}) for queue in queues),
        final=True,
    )
    due = [row for rows in answers for row in rows]
    if request.queues is None:
        due.sort(key=lambda row: (-row[1], row[2], row[0]))
    return [row[0] for row in due]


@operation("write", retries=0)
def claim_chosen(worker: str, ids: Sequence[str], *, limits: int = 0) -> Op[list[Claimed]]:
    """Claim these jobs, except those that are no longer due."""
    answers = yield from ask_all(
        *(Query("claim_chosen", {"worker": worker, "id": id, "limits": limits}) for id in ids), final=True
    )
    return [_claimed(row) for rows in answers for row in rows]


class RolledBack(Exception):
    """Raised to roll back a claim that was only a test."""


@operation("write", retries=0)
def try_to_claim(worker: str, id: str, *, limits: int = 0) -> Op[None]:
    """Claim a job and roll back. Raises RolledBack if the claim would have succeeded."""
    yield from ask_all(Query("claim_chosen", {"worker": worker, "id": id, "limits": limits}))
    raise RolledBack


@operation("write", retries=0)
def hold_unclaimable(id: str, *, reason: str) -> Op[bool]:
    """Hold a job that makes every claim fail, so that claims skip it. Return whether it was still ready."""
    return bool((yield from ask_last("hold_job", id=id, reason=reason)))


@operation("write", retries=0)
def hold_damaged(ids: Sequence[str]) -> Op[list[tuple[str, str]]]:
    """Hold the jobs among these whose rows show why a claim fails; return their ids and the reasons.

    The reason is a counter at its maximum or, on PostgreSQL, a value that is too large.
    """
    rows = yield from ask_last("hold_damaged", ids=rows_of(list(ids)))
    return [(row[0], row[1]) for row in rows]


def claim_queries(request: ClaimRequest) -> Sequence[Query]:
    """The statements of a claim, to be sent in one round trip. The last statement returns the claimed jobs.

    A claim of limited jobs counts the running jobs under a lock. The round trip that takes the lock must also commit,
    so that a suspended worker does not keep the lock.
    """
    if request.limited is None:
        return (_claim_query(request),)
    ids = rows_of(list(request.limited))
    asked: dict[str, Param] = {
        "worker": request.worker,
        "limits": request.limits,
        "ids": ids,
        "n": request.n,
    }
    return Query("lock_limits", {}), Query("claim_limited", asked)


def _claim_query(request: ClaimRequest) -> Query:
    worker, tasks, n, queues, window, limits, _ = request
    params: dict[str, Param] = {
        "worker": worker,
        "tasks": rows_of(list(dict.fromkeys(tasks))),
        "n": n,
        "limits": limits,
    }
    if window is None:
        return Query("claim_jobs", {**params, "queues": None if queues is None else rows_of(queues)})
    ahead = behind = None
    if queues is not None:
        place = queues.index(window.queue)
        ahead, behind = rows_of(queues[:place]), rows_of(queues[place + 1 :])
    return Query("claim_window", {**params, **window._asdict(), "ahead": ahead, "behind": behind})


def read_claims(rows: Rows, request: ClaimRequest) -> Claims:
    """Read the claimed jobs, in order.

    The rows of a claim with a window arrive sorted. The rows of other claims come from RETURNING, in any order.
    """
    jobs = [_claimed(row) for row in rows if row[-1] == "running"]
    if request.window is None:
        # One sort per key, the last key first: sorts are stable, and attrgetter is four times as fast as a lambda.
        jobs.sort(key=attrgetter("run_at", "id"))
        jobs.sort(key=attrgetter("priority"), reverse=True)
        rank = {queue: i for i, queue in enumerate(request.queues or ())}
        if rank:
            jobs.sort(key=lambda job: rank.get(job.queue, 0))
    others = [row for row in rows if row[-1] != "running"] if len(jobs) < len(rows) else []
    expired = [row[0] for row in others if row[-1] == "canceled"]
    return Claims(jobs, expired, locked=any(row[-1] == "locked" for row in others), more=bool(others))


def _claimed(row: Row) -> Claimed:
    """Read a claimed job. SQLite stores any text as an id, but a job whose id is not a UUID could never be finished."""
    if len(row[0]) != ID_LENGTH:
        raise InternalError("Its id was not made by perdure.", code="job.damaged")
    return Claimed(*row[:-1])
