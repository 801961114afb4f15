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
from bench.pages import Pages
from bench.report import Report
from bench.servers import databases
from bench.workload import TASK

RATE = 800
MINUTES = 3
BATCH = RATE // 100
"""Of the claim that is looked at: as many jobs as come at a time."""
LOOK = 1.0

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
    pages: int
    """That one claim touches."""
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
                cycle = pages.of_a_cycle(BATCH)
                row = server.execute(TOUCHED).fetchone()
                assert row is not None
                touched = int(row[0] or 0)
                looks.append(
                    Look(passed, int(passed // minute), running.entered(), cycle.claim.pages, touched)
                )
                time.sleep(LOOK)
    return looks


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
    claims = [median(look.pages for look in minute) for minute in minutes]
    report.figure(
        f"pages of a claim {name}, minute {MINUTES} / minute 1",
        claims[-1] / claims[0],
        "ratio",
        at_most=MORE_PAGES if target else None,
        pages=claims,
        worst=max(look.pages for look in looks),
    )
    touched = [
        (last.touched - first.touched) / max(1, last.begun - first.begun) for first, *_, last in minutes
    ]
    report.fact(pages_touched_for_each_job=[round(each, 1) for each in touched], where=name)


if __name__ == "__main__":
    sys.exit(main())
