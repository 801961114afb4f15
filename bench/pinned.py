"""A worker beside a transaction that somebody left open on PostgreSQL: `make bench-pinned`.

Such a snapshot keeps every dead row, and with it every dead entry of an index, for a claim to walk past. Jobs come at
a fixed rate for three minutes, once without it and once with it. `--scale 0.1` tries it with shorter minutes.
"""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import psycopg

from bench.calls import Process, Program, ask, workers
from bench.pages import Looks, Pages
from bench.report import Report
from bench.servers import databases
from bench.workload import QUEUE, TASK
from perdure.ops.claim import Front
from perdure.worker.front import SLACK, WHOLE

RATE = 800
MINUTES = 3
BATCH = RATE // 100
"""Of the claim that is looked at: as many jobs as come at a time."""
LOOK = 1.0
COUNTED = 10
"""Every so many looks the pages of a claim are counted, for which it is carried out: more often it would disturb."""

UNPINNED = 0.95
MORE_PAGES = 2.0

TOUCHED = """
SELECT sum(heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read)
  FROM pg_statio_user_tables WHERE schemaname = 'perdure' AND relname = 'job'
"""


class Look(NamedTuple):
    at: float
    """Seconds from the start."""
    minute: int
    begun: int
    """Handlers, so far."""
    claims: Looks | None
    """What a claim touches, where it was counted."""
    touched: int
    """Pages of the table and its indexes, by everybody, so far."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="part of a minute that a minute takes")
    asked = parser.parse_args(arguments)
    minute = 60 * asked.scale
    report = Report()
    with databases(report) as made:
        rates = {}
        for name in ("without", "with"):
            looks = _run(made.new("postgres", f"{name}-snapshot"), minute, pinned=name == "with")
            first, *_, last = looks
            rates[name] = (last.begun - first.begun) / (last.at - first.at)
            _tell(report, f"{name} a pinned snapshot", looks, rates[name], target=name == "with")
    report.figure(
        "throughput with a pinned snapshot / without",
        rates["with"] / rates["without"],
        "ratio",
        at_least=UNPINNED,
    )
    return report.status()


def _run(url: str, minute: float, *, pinned: bool) -> list[Look]:
    program = Program(Path(sys.executable), "bench.perdure_contestant", url)
    ask(program, "setup", key="ready")
    looks: list[Look] = []
    with (
        _snapshot(url, pinned=pinned),
        closing(Pages(url, [TASK])) as pages,
        psycopg.connect(url, autocommit=True) as server,
        workers(program, 100) as running,
    ):
        ask(program, "fill", 1, key="ready")
        running.first()
        with Process(program, "enqueue-paced", RATE, MINUTES * minute + LOOK):
            running.begun(RATE // 10, timeout=30)
            start = time.monotonic()
            while (passed := time.monotonic() - start) < MINUTES * minute:
                row = server.execute(TOUCHED).fetchone()
                assert row is not None
                claims = None if len(looks) % COUNTED else pages.of_claims(BATCH, _front())
                looks.append(Look(passed, int(passed // minute), running.entered(), claims, int(row[0] or 0)))
                time.sleep(LOOK)
    return looks


def _front() -> Front:
    """Where a busy worker looks: its last job was enqueued just now."""
    return Front(QUEUE, 0, time.time_ns() // 1000 - SLACK)


def _pages(looks: Looks) -> float:
    """Of claims, for each job, as a worker claims beside a snapshot."""
    return looks.front.pages / BATCH + looks.whole.pages / (WHOLE * RATE)


@contextmanager
def _snapshot(url: str, *, pinned: bool) -> Iterator[None]:
    with psycopg.connect(url) as connection:
        if pinned:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            connection.execute("SELECT 1")
        yield


def _tell(report: Report, name: str, looks: list[Look], rate: float, *, target: bool) -> None:
    report.figure(f"throughput {name}", rate, "jobs/s", asked=RATE)
    minutes = [[look for look in looks if look.minute == minute] for minute in range(MINUTES)]
    counted = [[look.claims for look in minute if look.claims is not None] for minute in minutes]
    claims = [median(map(_pages, looks)) for looks in counted]
    report.figure(
        f"pages of claims for each job {name}, minute {MINUTES} / minute 1",
        claims[-1] / claims[0],
        "ratio",
        at_most=MORE_PAGES if target else None,
        pages=[round(each, 1) for each in claims],
        front=[median(each.front.pages for each in looks) for looks in counted],
        whole=[median(each.whole.pages for each in looks) for looks in counted],
    )
    touched = [
        (last.touched - first.touched) / max(1, last.begun - first.begun) for first, *_, last in minutes
    ]
    report.fact(pages_touched_for_each_job=[round(each, 1) for each in touched], where=name)


if __name__ == "__main__":
    sys.exit(main())
