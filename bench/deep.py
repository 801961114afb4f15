"""A drain where millions of finished and future jobs lie around: `make bench-deep`.

About half an hour, most of it to fill, and 4 GB of disk besides the log. `--scale 0.01` tries it with a hundredth.
"""

from __future__ import annotations

import shutil
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from statistics import median

import psycopg

from bench.drain import BULK, drain, enqueue
from bench.filled_database import FilledDatabase, Jobs
from bench.pages import Pages
from bench.report import Report
from bench.servers import Databases, databases
from perdure.ops.claim import ClaimWindow
from perdure.worker.claim_window import SLACK
from tests.postgres import with_database
from tests.sql.plans_postgres import Plan

FINISHED, FUTURE = 10_000_000, 1_000_000
JOBS, ROUNDS = 40_000, 5
BATCH = 100
TAKEN = 500
"""Before a claim is looked at: their entries are dead and still there."""
DAY = 86_400
DRAINED = {"mail": "jobs like the others", "nothing": "jobs narrower than any other"}
"""By task. PostgreSQL puts a job wherever a page has room: of narrower ones, one into each of many old pages."""

DEEP = 0.85
"""Of the empty table's rate."""
MORE_ROWS, MORE_PAGES = 1.0, 2.0
"""So many times the rows are looked at, and the pages: those on the way down trees that are a level or two higher."""
BYTES = 800
"""Of disk, for a row with its indexes and its part of the log, at the most."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="part of the rows and jobs")
    parser.add_argument("--only", choices=("sqlite", "postgres"), help="one kind of database")
    asked = parser.parse_args(arguments)
    report = Report()
    with databases(report) as made:
        for kind in (asked.only,) if asked.only else ("sqlite", "postgres"):
            _refuse_small_disk(made.directory, asked.scale)
            _measure(report, made, kind, asked.scale)
    return report.status()


def _refuse_small_disk(directory: Path, scale: float) -> None:
    free, needed = shutil.disk_usage(directory).free, int((FINISHED + FUTURE) * scale * BYTES)
    if free < needed:
        raise SystemExit(f"This needs {needed / 1e9:.0f} GB of disk, and {free / 1e9:.0f} GB are free.")


def _measure(report: Report, made: Databases, kind: str, scale: float) -> None:
    deep = made.new(kind, "deep")
    _fill(report, deep, kind, scale)
    jobs = int(JOBS * min(1, 10 * scale)) // BULK * BULK or BULK
    rates: dict[str, list[tuple[float, float]]] = {task: [] for task in DRAINED}
    for number in range(ROUNDS):
        for task in DRAINED:
            empty = made.new(kind, f"empty-{task}-{number}")
            # Neither side always comes first.
            first, second = (deep, empty) if number % 2 else (empty, deep)
            drained = {url: _drain(url, jobs, task) for url in (first, second)}
            report.fact(
                round=number, database=kind, task=task, without=drained[empty], with_mass=drained[deep]
            )
            rates[task].append((drained[deep], drained[empty]))
    for task, such in DRAINED.items():
        ratios = sorted(one / other for one, other in rates[task])
        report.figure(
            f"{kind}: drain of {such} with {int(FINISHED * scale)} finished and {int(FUTURE * scale)} future ones"
            " / without",
            median(ratios),
            "ratio",
            at_least=DEEP,
            spread=[round(ratios[0], 3), round(ratios[-1], 3)],
            jobs_a_second=median(one for one, _ in rates[task]),
            without=median(other for _, other in rates[task]),
        )
    if kind == "postgres":
        _count_pages(report, deep, made.new(kind, "pages"))
    _drop(deep)


def _drain(url: str, jobs: int, task: str) -> float:
    """Right behind a checkpoint: or one comes while we measure, and one side pays for what the other wrote."""
    if url.startswith("postgresql"):
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CHECKPOINT")
    return drain(url, jobs, task=task)


def _fill(report: Report, url: str, kind: str, scale: float) -> None:
    with closing(FilledDatabase(url)) as filled:
        filled.fill(
            Jobs(int(FINISHED * scale), task="mail", queue="default", finished=True),
            Jobs(int(FUTURE * scale), task="mail", queue="default", due=7 * DAY),
        )
    rows = int((FINISHED + FUTURE) * scale)
    size = _size(url)
    report.figure(f"{kind}: disk for {rows} rows", size / 1e9, "GB", bytes_a_row=size / rows)


def _size(url: str) -> int:
    if url.startswith("sqlite"):
        return Path(url.removeprefix("sqlite:///")).stat().st_size
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT pg_total_relation_size('perdure.job')").fetchone()
        assert row is not None
        return int(row[0])


def _count_pages(report: Report, deep: str, empty: str) -> None:
    """Of a cycle, whose claim looks everywhere, and of a claim as most are: behind others that were just taken."""
    counted: dict[str, dict[str, Plan]] = {}
    for url in (deep, empty):
        enqueue(url, BULK, task="mail")
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE perdure.job")
        with closing(FilledDatabase(url)) as filled, closing(Pages(url, ["mail"])) as pages:
            last = filled.take(TAKEN, tasks=["mail"])[-1]
            near = pages.of_a_front(BATCH, ClaimWindow(last.queue, last.priority, last.run_at - SLACK))
            cycle = pages.of_a_cycle(BATCH)
        assert cycle.claimed == BATCH
        counted[url] = {"claim": near, "claim that looks everywhere": cycle.claim, "finish": cycle.finish}
    for name, with_mass in counted[deep].items():
        without = counted[empty][name]
        _tell(report, f"jobs looked at by a {name}", *map(_jobs, (with_mass, without)), at_most=MORE_ROWS)
        _tell(report, f"pages of a {name}", with_mass.pages, without.pages, at_most=MORE_PAGES)
        report.fact(statement=name, rows_by_node=with_mass.rows)


def _jobs(plan: Plan) -> float:
    """That its scans of the table came upon; a sort sees them once more."""
    return sum(rows for node, rows in plan.rows.items() if "Scan job " in node)


def _tell(report: Report, name: str, with_mass: float, without: float, *, at_most: float) -> None:
    report.figure(
        f"postgres: {name} for each job, with the mass / without",
        with_mass / without,
        "ratio",
        at_most=at_most,
        with_mass=with_mass / BATCH,
        without=without / BATCH,
    )


def _drop(url: str) -> None:
    """Before the next one needs the disk."""
    if url.startswith("sqlite"):
        Path(url.removeprefix("sqlite:///")).unlink()
        return
    with psycopg.connect(with_database(url, "postgres"), autocommit=True) as connection:
        connection.execute("DROP DATABASE deep WITH (FORCE)")


if __name__ == "__main__":
    sys.exit(main())
