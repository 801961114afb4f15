"""Take ready jobs."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from perdure.model.job import Claimed, Instant
from perdure.ops.batch import rows_of
from perdure.ops.op import Op, Param, Query, Rows, Step, operation


class Front(NamedTuple):
    """One queue and priority: all that is ready, as far as one knows. ``since``: nothing of it counts from before."""

    queue: str
    priority: int
    since: Instant | None = None


class Appetite(NamedTuple):
    """What to claim: at most n jobs of these tasks, from these queues in this order or from all as one.

    ``front``: only from there, if nothing comes before it, which is cheaper.
    """

    worker: str
    tasks: Sequence[str]
    n: int
    queues: Sequence[str] | None = None
    front: Front | None = None

    def __bool__(self) -> bool:
        return self.n > 0 and bool(self.tasks)


class Claims(NamedTuple):
    """The jobs taken, in order, and the ids of those that had expired and were canceled instead.

    ``locked``: others hold some of what is due first. ``more``: another look may find more than this one did.
    """

    jobs: list[Claimed]
    expired: Sequence[str] = ()
    locked: bool = False
    more: bool = False


@operation("write")
def claim(appetite: Appetite) -> Op[Claims]:
    if not appetite:
        return Claims([])
    (rows,) = yield Step((claim_query(appetite),), final=True)
    return read_claims(rows, appetite)


@operation("write")
def claim_around(appetite: Appetite) -> Op[Claims]:
    """The same where others hold the rows that are due first: whatever is free behind them."""
    appetite = appetite._replace(front=None)
    query = claim_query(appetite)._replace(name="claim_around")
    (rows,) = yield Step((query,), final=True)
    return read_claims(rows, appetite)


def claim_query(appetite: Appetite) -> Query:
    worker, tasks, n, queues, front = appetite
    params: dict[str, Param] = {"worker": worker, "tasks": rows_of(list(dict.fromkeys(tasks))), "n": n}
    if front is None:
        return Query("claim_jobs", {**params, "queues": None if queues is None else rows_of(queues)})
    ahead = behind = None
    if queues is not None:
        place = queues.index(front.queue)
        ahead, behind = rows_of(queues[:place]), rows_of(queues[place + 1 :])
    return Query("claim_front", {**params, **front._asdict(), "ahead": ahead, "behind": behind})


def read_claims(rows: Rows, appetite: Appetite) -> Claims:
    """The front comes in order. RETURNING promises none, so elsewhere the order of the claim is made here."""
    jobs = [Claimed(*row[:-1]) for row in rows if row[-1] == "running"]
    if appetite.front is None:
        # One sort for each key, the last first: sorts are stable, and attrgetter is four times as fast as a lambda.
        jobs.sort(key=attrgetter("run_at", "id"))
        jobs.sort(key=attrgetter("priority"), reverse=True)
        rank = {queue: i for i, queue in enumerate(appetite.queues or ())}
        if rank:
            jobs.sort(key=lambda job: rank.get(job.queue, 0))
    others = [row for row in rows if row[-1] != "running"] if len(jobs) < len(rows) else []
    expired = [row[0] for row in others if row[-1] == "canceled"]
    return Claims(jobs, expired, locked=any(row[-1] == "locked" for row in others), more=bool(others))
