"""Read and change limits, and find the due jobs that fit under them.

There is no counter of used slots: the running jobs are counted, so no crash, cancel or rescue can leave a slot taken.
The search here counts without a lock. Therefore the claim counts again under a lock, see ``claim_queries`` and
docs/decisions/0027.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from perdure.errors import NotFound
from perdure.model.json_text import shown_json
from perdure.model.limits import Due, Group, Limits, Room, TaskLimit
from perdure.ops.audit import act
from perdure.ops.batch import rows_of
from perdure.ops.claim import ClaimRequest
from perdure.ops.op import Op, Param, Query, Row, ask_all, ask_last, operation
from perdure.ops.topics import LIMITS

FIRST_KEY = NO_KEY = ""
"""The first of all concurrency keys. Jobs with this key are not limited by their key."""

MOST_PASSED_OVER = 100
"""A search reads one more job for each job that it must pass over, but at most this many more."""


class NamedLimit(NamedTuple):
    """A limit that tasks share. ``declared``: the code's value; ``edited``: whether an operator has set the limit."""

    name: str
    concurrency: int | None
    declared: int | None
    edited: bool


@operation("read")
def read_limits() -> Op[Limits]:
    # The version is read first. If a limit changes before the rest is read, the version is out of date: the next claim
    # gets nothing, and the worker reads the limits again.
    version, tasks, queues, named = yield from ask_all(
        Query("read_limit_version", {}),
        Query("list_limited_tasks", {}),
        Query("list_limited_queues", {}),
        Query("list_named_limits", {}),
        final=True,
    )
    return Limits(
        version[0][0] if version else 0,
        {row[0]: _task_limit(*row[1:]) for row in tasks},
        {row[0]: row[1] for row in named},
        {name: concurrency for name, concurrency in queues},
    )


@operation("read")
def read_version() -> Op[int]:
    rows = yield from ask_last("read_limit_version")
    return rows[0][0] if rows else 0


@operation("read")
def list_limits() -> Op[list[NamedLimit]]:
    return named_limits((yield from ask_last("list_named_limits")))


def named_limits(rows: Sequence[Row]) -> list[NamedLimit]:
    return [
        NamedLimit(name, concurrency, declared, bool(edited)) for name, concurrency, declared, edited in rows
    ]


@operation("write")
def set_limit(name: str, concurrency: int | None, *, by: str | None = None) -> Op[None]:
    """Set a named limit for all workers; None lifts it."""
    yield from ask_all(
        Query("change_limits", {}),
        Query("set_limit", {"name": name, "concurrency": concurrency}),
        act("set_limit", f"limit {name}", by, concurrency=concurrency),
        final=True,
        wake=frozenset([LIMITS]),
    )


@operation("write")
def reset_limit(name: str, *, by: str | None = None) -> Op[int | None]:
    """Set a named limit back to the value that the code declares; return that value."""
    _, rows = yield from ask_all(Query("change_limits", {}), Query("reset_limit", {"name": name}))
    if not rows:
        raise NotFound(f"There is no limit named {name}.", code="limit.unknown")
    done = act("reset_limit", f"limit {name}", by, concurrency=rows[0][0])
    yield from ask_all(done, final=True, wake=frozenset([LIMITS]))
    concurrency: int | None = rows[0][0]
    return concurrency


@operation("read")
def find_superseded(*, n: int = 100) -> Op[list[str]]:
    """Jobs to cancel: their task cancels running jobs, and a newer job of the task, or of their key, is due or runs."""
    return [row[0] for row in (yield from ask_last("find_superseded", n=n))]


class Fitting(NamedTuple):
    """Due jobs that fit under their limits, in order, as of the time they were read.

    ``spare``: jobs to claim in place of jobs that other workers have claimed or locked since. ``cursors``: the last
    key that was read, by ``Group.place``, if a search by key stopped before the last key. The next search begins there.
    ``supersede``: whether a job that does not fit may replace running jobs.
    """

    jobs: list[Due]
    spare: list[Due]
    cursors: Mapping[Group, str]
    supersede: bool


@operation("read", priority="urgent")
def find_fitting(
    request: ClaimRequest,
    limits: Limits,
    cursors: Mapping[Group, str],
    *,
    spare: int = 0,
    ended: Sequence[str] = (),
    sent: Collection[str] = (),
    passed_over: Collection[str] = (),
) -> Op[Fitting]:
    """Find the first n due jobs of limited tasks and queues that fit.

    A concurrency key is full if no more jobs with this key may run. If fewer than n jobs fit, and jobs with full keys
    may hide later jobs of a group, the group is searched key by key.

    ``cursors``: where such searches begin. ``spare``: how many jobs to find in addition. ``ended``: jobs whose outcomes
    are recorded together with the claim; they no longer count as running. ``sent``: jobs of a claim that is under way;
    they count as running. ``passed_over``: jobs that the database refuses for now.
    """
    # A few more than n: among many keys, some of the first jobs usually do not fit.
    unusable = len(sent) + min(len(passed_over), MOST_PASSED_OVER)
    page = request.n + request.n // 4 + spare + unusable
    running, rows = yield from ask_all(*_searches(request, limits, page, ended))
    due = [_due(row) for row in rows]
    counts = [(queue, task, key, count) for queue, task, key, count in running]
    counts += [(job.queue, job.task, job.key, 1) for job in due if job.id in sent]
    found = [job for job in due if job.id not in sent and job.id not in passed_over]
    room = Room(limits, counts)
    chosen, blocked = room.choose(found, request.n)
    reached: Mapping[Group, str] = {}
    last = chosen[-1] if len(chosen) == request.n else None
    if groups := _hidden_groups(due, blocked, room, page, last):
        room = Room(limits, counts)
        by_key, reached = yield from _find_by_key(groups, request.n, room, limits, cursors, unusable=unusable)
        found += [job for job in by_key if job.id not in sent and job.id not in passed_over]
        chosen, _ = room.choose({*found}, request.n)
    supersede = any(limits.cancels_running(job.task) for job in blocked)
    spares = _spare_jobs(found, chosen, Room(limits, counts), spare)
    return Fitting(chosen, spares, reached, supersede)


def _hidden_groups(
    due: Iterable[Due], blocked: Iterable[Due], room: Room, page: int, last: Due | None
) -> list[Group]:
    """The groups in which jobs with full keys may hide others: those that have at least a page of due jobs.

    ``last``: the last of the chosen jobs, if they are enough. Then only jobs that come before it matter.
    """
    pages: dict[Group, list[Due]] = {}
    for job in due:
        pages.setdefault(job.group, []).append(job)
    groups = {job.group for job in blocked if room.key_is_full(job)}
    return sorted(
        group for group in groups if len(pages[group]) == page and (last is None or max(pages[group]) < last)
    )


def _searches(request: ClaimRequest, limits: Limits, page: int, ended: Sequence[str]) -> Sequence[Query]:
    limited: dict[str, Param] = {
        "limited_tasks": rows_of([*limits.tasks]),
        "limited_queues": rows_of([*limits.queues]),
    }
    tasks = request.tasks if limits.queues else [task for task in request.tasks if task in limits.tasks]
    asked: dict[str, Param] = {
        **limited,
        "worker": request.worker,
        "limits": limits.version,
        "queues": None if request.queues is None else rows_of(request.queues),
        "tasks": rows_of(list(tasks)),
        "n": page,
    }
    return Query("count_limited", {**limited, "ended": rows_of(list(ended))}), Query("find_limited", asked)


def _find_by_key(
    groups: Sequence[Group],
    n: int,
    room: Room,
    limits: Limits,
    cursors: Mapping[Group, str],
    *,
    unusable: int,
) -> Op[tuple[list[Due], Mapping[Group, str]]]:
    """The first due jobs of keys that have room, and the last key that was read in each group.

    In each group, the search begins with the key where the previous search ended. After the last key, it continues with
    the first key.
    """
    starts = {group: cursors.get(group.place, FIRST_KEY) for group in groups}
    reached: dict[Group, str] = {}
    most = -(-2 * n // max(1, len(groups)))
    answers = yield from ask_all(
        *(Query("find_keyless", {**_in_group(group), "n": most}) for group in groups)
    )
    found = {
        id: Due(group.rank, -group.priority, run_at, id, group.queue, group.task, NO_KEY)
        for group, rows in zip(groups, answers, strict=True)
        for id, run_at in rows
    }
    while starts and len(found) < n:
        queries = [
            _search_by_key(group, start, most, room, limits, unusable) for group, start in starts.items()
        ]
        answers = yield from ask_all(*queries)
        again: dict[Group, str] = {}
        for (group, start), query, rows in zip(starts.items(), queries, answers, strict=True):
            for id, run_at, key in rows:
                if id is not None:
                    found[id] = Due(group.rank, -group.priority, run_at, id, group.queue, group.task, key)
            if len(rows) == query.params["n"]:
                reached[group.place] = rows[-1][2]
            elif start != FIRST_KEY:
                again[group] = FIRST_KEY
        starts = again
    return [*found.values()], reached


def _search_by_key(group: Group, after: str, most: int, room: Room, limits: Limits, unusable: int) -> Query:
    full = room.full_keys(group.task)
    return Query(
        "find_by_key",
        {
            **_in_group(group),
            "full": rows_of(full),
            "each": min(most, limits.tasks[group.task].concurrency or most) + unusable,
            "after": after,
            "n": most + len(full),  # a full key gives one row without a job
        },
    )


def _in_group(group: Group) -> dict[str, Param]:
    return {"queue": group.queue, "priority": group.priority, "task": group.task}


def _spare_jobs(due: Iterable[Due], chosen: Collection[Due], room: Room, n: int) -> list[Due]:
    """Up to n jobs that were not chosen. Each would fit if none of the chosen jobs were claimed."""
    if n == 0:
        return []
    taken = {job.id for job in chosen}
    return [job for job in sorted({*due}) if job.id not in taken and room.fits(job)][:n]


def _task_limit(
    concurrency: int | None, scope: str, keyed: bool, names: str | None, cancels_running: bool
) -> TaskLimit:
    given = [] if names is None else shown_json(names)
    shared = tuple(given) if isinstance(given, list) else ()
    return TaskLimit(concurrency, scope, bool(keyed), shared, bool(cancels_running))


def _due(row: Row) -> Due:
    id, rank, priority, run_at, queue, task, key = row
    return Due(rank, -priority, run_at, id, queue, task, key)
