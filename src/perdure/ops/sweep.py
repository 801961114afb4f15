"""What the sweeper does: rescue the jobs of workers that fell silent, cancel what expired."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from perdure.model.job import Instant
from perdure.model.lifecycle import Change, Failed, Running, settle
from perdure.ops.finish import Dice, apply, ready_topics
from perdure.ops.op import Op, ask, ask_all, ask_last, operation
from perdure.ops.running import read_running

FIRST = "00000000-0000-0000-0000-000000000000"
"""Before every id."""


class Rescued(NamedTuple):
    """One page of a rescue. ``last``: where the next page begins; None after the last one."""

    changes: list[Change]
    last: str | None


@operation("write")
def retire_silent(*, steady_since: Instant | None = None) -> Op[list[str]]:
    """Retire the workers whose lease ran out: also by a clock that was set, if that is a lease ago."""
    rows = yield from ask_last("retire_silent_workers", steady_since=steady_since)
    return [row[0] for row in rows]


@operation("write")
def rescue(*, dice: Dice, after: str = FIRST, n: int = 500) -> Op[Rescued]:
    """Free running jobs whose worker is not live: also those of a claim that committed after the retirement."""
    rows = yield from ask("find_orphans", after=after, n=n)
    jobs = [read_running(row) for row in rows]
    changes = [_lose(job, dice) for job in jobs]
    yield from ask_all(*apply(changes), final=True, wake=ready_topics(jobs, changes))
    return Rescued(changes, jobs[-1].id if len(jobs) == n else None)


@operation("write")
def expire(*, n: int = 500) -> Op[list[str]]:
    """Cancel jobs that were not started in time; return their ids."""
    rows = yield from ask_last("expire_jobs", n=n)
    return [row[0] for row in rows]


@operation("write")
def list_orphans(*, after: str = FIRST, n: int = 500) -> Op[list[str]]:
    """The running jobs whose worker is not live, unchanged."""
    rows = yield from ask_last("find_orphans", after=after, n=n)
    return [row[0] for row in rows]


@operation("write")
def rescue_one(id: str, *, dice: Dice) -> Op[list[Change]]:
    """Rescue this job and no other, if it is still an orphan."""
    before = _just_before(id)
    rows = yield from ask("find_orphans", after=before, n=1)
    jobs = [job for job in map(read_running, rows) if job.id == id]
    changes = [_lose(job, dice) for job in jobs]
    yield from ask_all(*apply(changes), final=True, wake=ready_topics(jobs, changes))
    return changes


def _lose(job: Running, dice: Dice) -> Change:
    return settle(job, Failed(job.lease, "lost", message="Its worker fell silent."), roll=dice())


def _just_before(id: str) -> str:
    return str(UUID(int=UUID(id).int - 1))
