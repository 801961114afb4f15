"""What limits cost: `make bench-limits`. Drains of limited jobs beside the same drain without limits, in turns."""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

import psycopg

from bench.drain import span
from bench.limits_app import app as theirs
from bench.report import Report
from bench.servers import Databases, databases
from perdure import App

SLOTS = 200
KEYS = 1_000
MUST = 0.6
"""Of the drain without limits; the aim is 0.75."""
LIMITED = {
    "queue": "a queue's limit of 500",
    "whole": "a limit of 500 for all jobs of a task",
    "named": "a shared limit",
    "keyed": f"{KEYS} random keys with 3 each",
}
WORKER = (
    f"from bench.limits_app import app; raise SystemExit(app.run_worker(burst=True, concurrency={SLOTS}))"
)


class Drained(NamedTuple):
    """Jobs a second, and microseconds of the worker's CPU for each job."""

    rate: float
    cpu: float


def main(arguments: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=("sqlite", "postgres"), help="one kind of database")
    asked = parser.parse_args(arguments)
    report = Report()
    with databases(report) as made:
        for kind in (asked.only,) if asked.only else ("sqlite", "postgres"):
            _measure(report, made, kind, asked.jobs, asked.rounds)
    return report.status()


def _measure(report: Report, made: Databases, kind: str, jobs: int, rounds: int) -> None:
    ratios: dict[str, list[Drained]] = {task: [] for task in LIMITED}
    for number in range(rounds):
        order = ["free", *LIMITED]
        random.Random(number).shuffle(order)
        drained = {task: _drain(made.new(kind, f"{task}-{number}"), jobs, task) for task in order}
        report.fact(round=number, database=kind, **{task: one.rate for task, one in drained.items()})
        free = drained["free"]
        for task in LIMITED:
            ratios[task].append(Drained(drained[task].rate / free.rate, free.cpu / drained[task].cpu))
    for task, such in LIMITED.items():
        for name, values in (
            ("jobs/s", [r.rate for r in ratios[task]]),
            ("CPU", [r.cpu for r in ratios[task]]),
        ):
            report.figure(
                f"{kind}: {such} / no limit, {name}",
                median(values),
                "ratio",
                at_least=MUST if name == "jobs/s" else None,
                spread=[round(min(values), 3), round(max(values), 3)],
            )


def _drain(url: str, jobs: int, task: str) -> Drained:
    """Enqueue, then run in a process of its own."""
    rng = random.Random(task)
    with App(url) as app:
        app.migrate()
        ids = [job.id for job in _enqueue(app, task, [rng.randrange(KEYS) for _ in range(jobs)])]
    if url.startswith("postgresql"):
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE perdure.job")
            connection.execute("CHECKPOINT")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", WORKER], env={**os.environ, "PERDURE_URL": url}, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    done, seconds = span(url, min(ids), max(ids))
    assert done == jobs
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Drained(done / seconds, cpu / jobs * 1e6)


def _enqueue(app: App, task: str, numbers: Sequence[int]) -> list[Any]:
    """Enqueue jobs of the worker's program, whose tasks and limits are written first."""
    tasks: Any = theirs.tasks
    for name in ("free", *LIMITED):
        app.tasks[name] = tasks[name]
    app.declared_limits.update(theirs.declared_limits)
    app.queues.update(theirs.queues)
    app.save_tasks()
    return [
        job
        for start in range(0, len(numbers), 1_000)
        for job in app.enqueue_many([tasks[task].job(n) for n in numbers[start : start + 1_000]])
    ]


if __name__ == "__main__":
    raise SystemExit(main())
