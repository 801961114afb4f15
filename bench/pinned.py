"""A worker beside a transaction that somebody left open on PostgreSQL: `make bench-pinned`.

Such a snapshot keeps every dead row, and with it every dead entry of an index, for a claim to walk past. Jobs come at
a fixed rate for three minutes, once without it and once with it. `--scale 0.1` tries it with shorter minutes.
"""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import psycopg

from bench.calls import Process, Program, ask, workers
from bench.report import Report
from bench.servers import databases

RATE = 800
MINUTES = 3

UNPINNED = 0.95
MORE_PAGES = 2.0

# Of the worker's claims, by the server's count: claim_jobs begins with a recursive query, claim_window does not.
# Without claim_skipping_locked, which one worker alone hardly asks.
CLAIMED = """
SELECT query LIKE 'WITH RECURSIVE%' AS whole, sum(calls), sum(shared_blks_hit + shared_blks_read)
  FROM public.pg_stat_statements(true)
 WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database()) AND query LIKE '%claimed AS (%'
 GROUP BY whole
"""
TOUCHED = """
SELECT sum(heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read)
  FROM pg_statio_user_tables WHERE schemaname = 'perdure' AND relname = 'job'
"""


class Claims(NamedTuple):
    """So far, as the server counts."""

    calls: int = 0
    pages: int = 0

    def since(self, before: Claims) -> Claims:
        return Claims(self.calls - before.calls, self.pages - before.pages)


class Look(NamedTuple):
    """Between two minutes."""

    at: float
    """Seconds from the start."""
    begun: int
    """Handlers, so far."""
    front: Claims
    whole: Claims
    touched: int
    """Pages of the table and its indexes, by everybody, so far."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="part of a minute that a minute takes")
    asked = parser.parse_args(arguments)
    minute = 60 * asked.scale
    report = Report()
    with databases(report, shared_preload_libraries="pg_stat_statements") as made:
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
        psycopg.connect(url, autocommit=True) as server,
        _snapshot(url, pinned=pinned),
        workers(program, 100) as running,
    ):
        server.execute("CREATE EXTENSION pg_stat_statements SCHEMA public")
        ask(program, "fill", 1, key="ready")
        running.first()
        with Process(program, "enqueue-paced", RATE, MINUTES * minute + 1):
            running.begun(RATE // 10, timeout=30)
            start = time.monotonic()
            for number in range(MINUTES + 1):
                time.sleep(max(0, start + number * minute - time.monotonic()))
                looks.append(_look(server, time.monotonic() - start, running.entered()))
    return looks


def _look(server: psycopg.Connection, at: float, begun: int) -> Look:
    claims = {whole: Claims(int(calls), int(pages)) for whole, calls, pages in server.execute(CLAIMED)}
    row = server.execute(TOUCHED).fetchone()
    assert row is not None
    return Look(at, begun, claims.get(False, Claims()), claims.get(True, Claims()), int(row[0] or 0))


@contextmanager
def _snapshot(url: str, *, pinned: bool) -> Iterator[None]:
    with psycopg.connect(url) as connection:
        if pinned:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            connection.execute("SELECT 1")
        yield


def _tell(report: Report, name: str, looks: list[Look], rate: float, *, target: bool) -> None:
    report.figure(f"throughput {name}", rate, "jobs/s", asked=RATE)
    pages, touched = [], []
    for number, (first, last) in enumerate(pairwise(looks), 1):
        begun = last.begun - first.begun
        front, whole = last.front.since(first.front), last.whole.since(first.whole)
        pages.append((front.pages + whole.pages) / begun)
        touched.append((last.touched - first.touched) / begun)
        report.fact(where=name, minute=number, jobs=begun, front=front._asdict(), whole=whole._asdict())
    report.figure(
        f"pages of claims for each job {name}, minute {MINUTES} / minute 1",
        pages[-1] / pages[0],
        "ratio",
        at_most=MORE_PAGES if target else None,
        pages=[round(each, 1) for each in pages],
        touched_by_all=[round(each, 1) for each in touched],
    )


if __name__ == "__main__":
    sys.exit(main())
