"""The hot path beside the fastest bare loop we can write for the same rows: `make bench-core`.

Ours and the bare loop take turns, a few hundredths of a second each, because the speed of a machine changes
within minutes: what counts is the ratio of two neighbours, and the median of those.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from statistics import median, quantiles
from threading import Thread
from time import monotonic, perf_counter
from typing import NamedTuple

from bench.bare_postgres import BarePostgres
from bench.bare_sqlite import BareSqlite
from bench.ours import Ours
from bench.report import Report
from bench.servers import Databases, databases
from bench.workload import Side, mails

FEWEST, MOST, SECONDS = 8, 60, 10.0
"""Rounds of a case: so many at least, at most, and no more once it has taken so long."""

SINGLE, BATCH = 0.50, 0.75
"""How fast ours must be, as a part of the bare loop's speed."""

CALLERS = 50
BULK = 1000
MAILS = mails(BULK)
BACKLOG = 6000
"""Jobs to claim from: fewer would be gone in one round, more would only take time to enqueue."""


class Case(NamedTuple):
    """One thing to measure: ``run`` handles so many ``jobs``, claiming them a ``batch`` at a time, if any."""

    name: str
    jobs: int
    run: Callable[[Side], None]
    target: float | None
    batch: int = 0


def main() -> int:
    report = Report()
    with databases(report) as made:
        report.fact(database="sqlite", version=sqlite3.sqlite_version, journal_mode="wal", synchronous="full")
        for kind in ("sqlite", "postgres"):
            _measure_all(report, made, kind)
    return report.status()


def _measure_all(report: Report, made: Databases, kind: str) -> None:
    bare_url = made.new(kind, "bare")
    Ours(bare_url).close()  # makes the tables
    ours = Ours(made.new(kind, "ours"))
    bare: Side = BareSqlite(bare_url) if kind == "sqlite" else BarePostgres(bare_url)
    try:
        for case in cases():
            _measure(report, f"{kind}: {case.name}", case, ours, bare)
    finally:
        ours.close()
        bare.close()


def cases() -> list[Case]:
    return [
        Case("enqueue one by one", 50, _enqueue_singly(50), SINGLE),
        Case(f"enqueue by {CALLERS} callers", 10 * CALLERS, _enqueue_together(10), None),
        Case(f"enqueue {BULK} at once", BULK, lambda side: side.enqueue_many(MAILS), BATCH),
        _cycles(1, times=50, target=SINGLE),
        _cycles(10, times=20, target=SINGLE),
        _cycles(100, times=6, target=BATCH),
        _cycles(500, times=3, target=BATCH),
    ]


def _enqueue_singly(n: int) -> Callable[[Side], None]:
    def run(side: Side) -> None:
        for mail in MAILS[:n]:
            side.enqueue(mail)

    return run


def _enqueue_together(each: int) -> Callable[[Side], None]:
    def call(side: Side) -> None:
        for mail in MAILS[:each]:
            side.enqueue_together(mail)

    def run(side: Side) -> None:
        threads = [Thread(target=call, args=[side]) for _ in range(CALLERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return run


def _cycles(n: int, *, times: int, target: float) -> Case:
    def run(side: Side) -> None:
        for _ in range(times):
            assert side.cycle(n) == n

    return Case(f"claim and finish by {n}", n * times, run, target, batch=n)


def _measure(report: Report, name: str, case: Case, ours: Side, bare: Side) -> None:
    rates: dict[Side, list[float]] = {ours: [], bare: []}
    until = monotonic() + SECONDS
    left = 0
    for number in range(-1, MOST):  # the first only warms up
        if case.batch and left < case.jobs:
            left += _top_up(ours, case.batch)
            _top_up(bare, case.batch)
        left -= case.jobs
        # Neither side always comes first.
        for side in (ours, bare) if number % 2 else (bare, ours):
            start = perf_counter()
            case.run(side)
            if number >= 0:
                rates[side].append(case.jobs / (perf_counter() - start))
        if number + 1 >= FEWEST and monotonic() > until:
            break
    _tell(report, name, case.target, rates[ours], rates[bare])


def _top_up(side: Side, batch: int) -> int:
    """Enqueue jobs to claim; return how many. After tidying the server plans anew: one cycle warms it up."""
    for _ in range(0, BACKLOG, BULK):
        side.enqueue_many(MAILS)
    side.tidy()
    return BACKLOG - side.cycle(batch)


def _tell(report: Report, name: str, target: float | None, ours: list[float], bare: list[float]) -> None:
    report.figure(f"{name}, ours", median(ours), "jobs/s")
    report.figure(f"{name}, bare", median(bare), "jobs/s")
    ratios = [one / other for one, other in zip(ours, bare, strict=True)]
    low, _, high = quantiles(ratios, n=4)
    report.figure(
        f"{name}, ours / bare",
        median(ratios),
        "ratio",
        at_least=target,
        quartiles=[round(low, 2), round(high, 2)],
        rounds=len(ratios),
    )


if __name__ == "__main__":
    sys.exit(main())
