"""The hot path beside the fastest bare loop we can write for the same rows: `make bench-core`.

Ours and theirs take turns, in short rounds, because the speed of a machine changes within minutes: what counts is the
ratio within a round, and its median over the rounds.
"""

from __future__ import annotations

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

ROUNDS = 15
SECONDS = 12.0
"""A case ends with whichever comes first."""

SINGLE, BATCH = 0.50, 0.75
"""How fast ours must be, as a part of the bare loop's speed."""

CALLERS = 50
BULK = 1000


class Case(NamedTuple):
    """One thing to measure. ``prepare`` is not timed; ``jobs`` is how many ``run`` handles."""

    name: str
    jobs: int
    run: Callable[[Side], None]
    target: float | None
    prepare: Callable[[Side], None] = lambda side: None


def main() -> int:
    report = Report()
    with databases(report) as made:
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
        Case("enqueue one by one", 100, _enqueue_singly(100), SINGLE),
        Case(f"enqueue by {CALLERS} callers", 20 * CALLERS, _enqueue_together(20), None),
        Case(f"enqueue {BULK} at once", 3 * BULK, _enqueue_many(3), BATCH),
        _cycles(1, times=100, target=SINGLE),
        _cycles(10, times=40, target=SINGLE),
        _cycles(100, times=15, target=BATCH),
        _cycles(500, times=6, target=BATCH),
    ]


def _enqueue_singly(n: int) -> Callable[[Side], None]:
    def run(side: Side) -> None:
        for mail in mails(n):
            side.enqueue(mail)

    return run


def _enqueue_together(each: int) -> Callable[[Side], None]:
    def call(side: Side) -> None:
        for mail in mails(each):
            side.enqueue_together(mail)

    def run(side: Side) -> None:
        threads = [Thread(target=call, args=[side]) for _ in range(CALLERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return run


def _enqueue_many(times: int) -> Callable[[Side], None]:
    def run(side: Side) -> None:
        for _ in range(times):
            side.enqueue_many(mails(BULK))

    return run


def _cycles(n: int, *, times: int, target: float) -> Case:
    def prepare(side: Side) -> None:
        for _ in range(0, n * times, BULK):
            side.enqueue_many(mails(BULK))
        side.tidy()

    def run(side: Side) -> None:
        for _ in range(times):
            assert side.cycle(n) == n

    return Case(f"claim and finish by {n}", n * times, run, target, prepare)


def _measure(report: Report, name: str, case: Case, ours: Side, bare: Side) -> None:
    rates: dict[Side, list[float]] = {ours: [], bare: []}
    until = monotonic() + SECONDS
    for number in range(-1, ROUNDS):
        # Neither side always comes first; the first round only warms up.
        for side in (ours, bare) if number % 2 else (bare, ours):
            case.prepare(side)
            start = perf_counter()
            case.run(side)
            rate = case.jobs / (perf_counter() - start)
            if number >= 0:
                rates[side].append(rate)
        if number > 2 and monotonic() > until:
            break
    _tell(report, name, case.target, rates[ours], rates[bare])


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
