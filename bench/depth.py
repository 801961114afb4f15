"""What a claim costs when the table is full of jobs that it cannot take: `make bench-depth`.

Two databases, one with the mass and one without, are claimed from in turns; each batch is given back before
the next.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from time import monotonic
from typing import NamedTuple

from bench.filled_database import FilledDatabase, Jobs
from bench.report import Report
from bench.servers import Databases, databases
from bench.workload import QUEUE, TASK

FINISHED, FUTURE, BLOCKED = 1_000_000, 200_000, 100_000
BATCH = 100
READY = (0, 5, 1000)

WARM_UP, REPEATS, SECONDS = 2, 200, 3.0
"""Claims per figure that do not count, that count, and how long they may take in all."""

FACTOR, ALLOWANCE = 1.5, 0.2
"""With the mass a claim may cost so many times as much, or so many milliseconds more, whichever is larger."""

TASKS, PRIORITIES, EACH = 200, 3, 20
SPREAD = 3.0


class Claim(NamedTuple):
    """What a worker asks for."""

    n: int = BATCH
    tasks: tuple[str, ...] = (TASK,)
    queues: tuple[str, ...] | None = None


def main() -> int:
    report = Report()
    with databases(report, synchronous=False) as made:
        report.fact(
            database="sqlite", version=sqlite3.sqlite_version, journal_mode="wal", synchronous="normal"
        )
        for kind in ("sqlite", "postgres"):
            _measure_mass(report, made, kind)
            _measure_spread(report, made, kind)
    return report.status()


def _measure_mass(report: Report, made: Databases, kind: str) -> None:
    with _filled_databases(made, kind, "shallow", "deep") as (shallow, deep):
        deep.fill(Jobs(FINISHED, finished=True), Jobs(FUTURE, due=86_400))
        for place, priority in {"higher": -1, "equal": 0, "lower": 1}.items():
            name = f"{kind}: future jobs at {place} priority"
            _measure_ready(report, name, shallow, deep, Claim(), priority=priority)
        for place, priority in {"higher": 1, "equal": 0}.items():
            unknown = Jobs(BLOCKED, due=-7200, task="elsewhere", priority=priority)
            deep.fill(unknown)
            _measure_ready(report, f"{kind}: unknown task in front, {place} priority", shallow, deep, Claim())
            deep.remove(unknown)
        deep.fill(Jobs(BLOCKED, due=-7200, queue="paused", priority=1))
        deep.pause("paused")
        for asked, queues in {"every queue": None, "both queues": ("paused", QUEUE)}.items():
            name = f"{kind}: paused queue in front, {asked} asked"
            _measure_ready(report, name, shallow, deep, Claim(queues=queues))


def _measure_ready(
    report: Report,
    name: str,
    shallow: FilledDatabase,
    deep: FilledDatabase,
    claim: Claim,
    *,
    priority: int = 0,
) -> None:
    """The same claim on both, with nothing to take, with little, and with plenty."""
    for n in READY:
        ready = Jobs(n, priority=priority)
        for filled in (shallow, deep):
            filled.fill(ready)
        without, with_mass = _take_turns((shallow, claim), (deep, claim), claimed=min(n, BATCH))
        report.figure(
            f"{name}, {n} ready",
            with_mass,
            "ms",
            at_most=max(FACTOR * without, without + ALLOWANCE),
            without=without,
            ratio=with_mass / without,
        )
        for filled in (shallow, deep):
            filled.remove(ready)


def _measure_spread(report: Report, made: Databases, kind: str) -> None:
    """Many tasks and priorities against one of each, with as many jobs."""
    tasks = tuple(f"{TASK}-{number}" for number in range(TASKS))
    with _filled_databases(made, kind, "narrow", "wide") as (narrow, wide):
        narrow.fill(Jobs(TASKS * PRIORITIES * EACH))
        wide.fill(
            *(Jobs(EACH, task=task, priority=priority) for task in tasks for priority in range(PRIORITIES))
        )
        one, many = _take_turns((narrow, Claim(10)), (wide, Claim(10, tasks)), claimed=10)
    name = f"{kind}: claim of 10, {TASKS} tasks at {PRIORITIES} priorities"
    report.figure(name, many, "ms", at_most=SPREAD * one, without=one, ratio=many / one)


def _take_turns(*sides: tuple[FilledDatabase, Claim], claimed: int) -> list[float]:
    """Milliseconds each side's claim takes, the median; every claim must yield as many jobs."""
    times: list[list[float]] = [[] for _ in sides]
    until = monotonic() + SECONDS
    for number in range(-WARM_UP, REPEATS):
        # Neither side always comes first.
        for taken, (filled, claim) in list(zip(times, sides, strict=True))[:: -1 if number % 2 else 1]:
            queues = None if claim.queues is None else list(claim.queues)
            seconds = filled.claim(claim.n, tasks=list(claim.tasks), queues=queues)
            if number >= 0:
                taken.append(seconds * 1000)
        for filled, _ in sides:
            assert filled.give_back() == claimed
        if number >= 5 and monotonic() > until:
            break
    return [median(taken) for taken in times]


@contextmanager
def _filled_databases(made: Databases, kind: str, *names: str) -> Iterator[list[FilledDatabase]]:
    filled_databases = [FilledDatabase(made.new(kind, name)) for name in names]
    try:
        yield filled_databases
    finally:
        for filled in filled_databases:
            filled.close()


if __name__ == "__main__":
    sys.exit(main())
