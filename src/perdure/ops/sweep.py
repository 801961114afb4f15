"""Operations of the sweeper: rescue the jobs of silent workers, cancel expired jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import NamedTuple
from uuid import UUID

from perdure.model.job import Instant
from perdure.model.lifecycle import Change, Failed, Running, settle
from perdure.ops.batch import rows_of
from perdure.ops.finish import Jitter, change_queries, ready_topics
from perdure.ops.op import Op, Query, ask_all, ask_last, operation
from perdure.ops.release import End, Tallies, ends_of, release
from perdure.ops.running import read_running
from perdure.ops.topics import ENDED

FIRST = "00000000-0000-0000-0000-000000000000"
"""Less than every id."""


class Rescued(NamedTuple):
    """One page of a rescue. ``last``: the id after which the next page begins; None after the last page."""

    changes: list[Change]
    last: str | None


@operation("write", retries=1)
def retire_silent(
    *,
    sweeper: str = "",
    steady_since: Instant | None = None,
    wanted: Callable[[], bool] = lambda: True,
) -> Op[list[str]]:
    """Retire the workers whose lease has expired.

    ``sweeper``: the worker that asks. It is not retired, even if its lease has expired. ``steady_since``: when the
    clock last changed. A worker is retired only once a whole lease has passed since then. ``wanted``: called again
    whenever the operation runs again, because the store may have waited for the database, and the workers may have
    waited, too.
    """
    if not wanted():
        return []
    rows = yield from ask_last("retire_silent_workers", sweeper=sweeper, steady_since=steady_since)
    return [row[0] for row in rows]


@operation("read")
def find_silent(*, sweeper: str = "", steady_since: Instant | None = None) -> Op[list[str]]:
    """The workers that ``retire_silent`` would retire."""
    rows = yield from ask_last("find_silent_workers", sweeper=sweeper, steady_since=steady_since)
    return [row[0] for row in rows]


@operation("write", retries=0)
def retire_silent_chosen(
    ids: Sequence[str], *, sweeper: str = "", steady_since: Instant | None = None
) -> Op[list[str]]:
    """Retire those of these workers whose lease has expired; return their ids."""
    rows = yield from ask_last(
        "retire_silent_chosen", ids=rows_of(ids), sweeper=sweeper, steady_since=steady_since
    )
    return [row[0] for row in rows]


@operation("write", retries=1)
def rescue(*, jitter: Jitter, after: str = FIRST, n: int = 500) -> Op[Rescued]:
    """Free running jobs whose worker is not live. A claim may even have been committed after its worker was retired."""
    changes, last = yield from _rescue(jitter, after, n)
    return Rescued(changes, last)


@operation("write", retries=1)
def expire(*, n: int = 500) -> Op[list[str]]:
    """Cancel expired jobs; return their ids."""
    rows = yield from ask_last("expire_jobs", n=n)
    return [row[0] for row in rows]


@operation("read")
def find_expired(*, n: int = 500) -> Op[list[str]]:
    """The jobs that ``expire`` would cancel."""
    return [row[0] for row in (yield from ask_last("find_expired_jobs", n=n))]


@operation("write", retries=0)
def expire_chosen(ids: Sequence[str]) -> Op[list[str]]:
    """Cancel the expired jobs among these ids; return the ids of the canceled jobs."""
    return [row[0] for row in (yield from ask_last("expire_chosen", ids=rows_of(ids)))]


@operation("read")
def find_overdue(*, n: int = 100) -> Op[list[str]]:
    """Workflows with expired steps, or with gates whose timeout has passed."""
    return (yield from _find_overdue(n))


@operation("write", retries=1)
def sweep_steps(workflows: Sequence[str] | None = None, *, n: int = 100) -> Op[list[str]]:
    """Cancel expired steps and resolve gates whose timeout has passed; return their ids.

    A step ends under its workflow's lock, so this works on whole workflows: the given workflows, or the first n found.
    """
    found = (yield from _find_overdue(n)) if workflows is None else workflows
    if not found:
        return []
    (locked,) = yield from ask_all(Query("lock_workflows", {"ids": rows_of(found)}))
    tallies = Tallies(locked)
    # This includes workflows whose row is gone. If their steps were left out, every sweep would find them again.
    answers = yield from ask_all(
        *(Query("expire_steps", {"workflow": id}) for id in found),
        *(Query("time_out_gates", {"workflow": id}) for id in found),
    )
    ends: dict[str, End] = {}
    for workflow, steps, gates in zip(found, answers[: len(found)], answers[len(found) :], strict=True):
        for id, pending in steps:
            ends[id] = End(workflow, "waiting" if pending else "ready", "canceled")
        for id, state in gates:
            ends[id] = End(workflow, "open", state)
    if ends:
        _, wake, _ = yield from release(tallies, ends)
        yield from ask_all(*tallies.settle(), final=True, wake=wake | {ENDED})
    return [*ends]


def _find_overdue(n: int) -> Op[list[str]]:
    expired, overdue = yield from ask_all(
        Query("find_expired_steps", {"n": n}), Query("find_overdue_gates", {"n": n})
    )
    return sorted({row[0] for row in (*expired, *overdue) if row[0] is not None})


@operation("write")
def list_orphans(*, after: str = FIRST, n: int = 500) -> Op[list[str]]:
    """List the running jobs whose worker is not live."""
    rows = yield from ask_last("find_orphans", after=after, n=n)
    return [row[0] for row in rows]


@operation("write", retries=0)
def rescue_chosen(ids: Sequence[str], *, jitter: Jitter, n: int) -> Op[list[Change]]:
    """Rescue the chosen jobs that are still orphans. Look for them among the next n orphans, from the first id on."""
    changes, _ = yield from _rescue(jitter, _just_before(ids[0]), 1 if len(ids) == 1 else n, only=set(ids))
    return changes


def _rescue(
    jitter: Jitter, after: str, n: int, *, only: Set[str] | None = None
) -> Op[tuple[list[Change], str | None]]:
    workflows, rows = yield from ask_all(
        Query("lock_orphan_workflows", {}), Query("find_orphans", {"after": after, "n": n})
    )
    tallies = Tallies(workflows)
    found = [*map(read_running, rows)]
    last = found[-1].id if len(found) == n else None
    unlocked = sorted({job.workflow for job in found if job.workflow and job.workflow not in tallies})
    there = (yield from _existing(unlocked)) if unlocked else set[str]()
    # Two kinds of steps are left to the next sweep: a step whose workflow another transaction has locked, and a step
    # that was orphaned between the two statements. A step whose workflow is gone is rescued now.
    chosen = found if only is None else [job for job in found if job.id in only]
    jobs = [job for job in chosen if job.workflow not in there]
    changes = [_lose(job, jitter) for job in jobs]
    writes, wake = change_queries(changes), ready_topics(jobs, changes)
    ends = ends_of((job.id, job.workflow, one.state) for job, one in zip(jobs, changes, strict=True))
    if ends:
        _, released, _ = yield from release(tallies, ends, *writes)
        writes, wake = tallies.settle(), wake | released
    yield from ask_all(*writes, final=True, wake=wake)
    return changes, last


def _existing(workflows: Sequence[str]) -> Op[set[str]]:
    answers = yield from ask_all(*(Query("get_workflow", {"id": id}) for id in workflows))
    return {rows[0][0] for rows in answers if rows}


def _lose(job: Running, jitter: Jitter) -> Change:
    return settle(job, Failed(job.lease, "lost", message="Its worker fell silent."), roll=jitter())


def _just_before(id: str) -> str:
    return str(UUID(int=UUID(id).int - 1))
