"""Workflows beside independent jobs: how long a start takes, how fast a graph drains: `make bench-workflows`."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import psycopg

from bench.report import Report
from bench.servers import Databases, databases
from perdure import App, Workflow
from perdure.ids import new_id
from perdure.model.job import SECOND
from perdure.model.lifecycle import Succeeded
from perdure.task import AsyncTask

STEPS = 10_000
CHAIN = 1_000
ROUNDS = 3
SINGLES = 300

START, DRAIN, LINK = 3.0, 0.6, 3.0
"""Targets: times a bulk enqueue, share of the rate of independent jobs, times a bare claim and finish."""

Task = AsyncTask[[], None]


def main() -> int:
    report = Report()
    with databases(report) as made:
        for kind in ("sqlite", "postgres"):
            _measure(report, made, kind)
    return report.status()


def _measure(report: Report, made: Databases, kind: str) -> None:
    bulk = _start(made, kind, "bulk", lambda task: [task.job() for _ in range(STEPS)])
    report.figure(f"{kind}: a bulk enqueue of {STEPS}", bulk * 1000, "ms")
    shapes: dict[str, Callable[[Task], Workflow]] = {"fan": fan, "layered": layered}
    for name, build in shapes.items():
        took = _start(made, kind, f"start_{name}", build)
        report.figure(f"{kind}: start of {name} {STEPS}", took * 1000, "ms")
        report.figure(f"{kind}: start of {name}, times a bulk enqueue", took / bulk, "ratio", at_most=START)
    alone = _drain(
        made, kind, "alone", STEPS, lambda app, task: app.enqueue_many([task.job() for _ in range(STEPS)])
    )
    report.figure(f"{kind}: {STEPS} independent jobs by one worker", alone, "jobs/s")
    for name, build in shapes.items():
        rate = _drain(made, kind, name, STEPS, partial(_begin, build))
        report.figure(f"{kind}: {name} {STEPS} by one worker", rate, "steps/s")
        report.figure(f"{kind}: {name}, share of independent jobs", rate / alone, "ratio", at_least=DRAIN)
    bare = _bare(made, kind)
    report.figure(f"{kind}: one bare claim and finish", bare * 1e6, "us")
    link = 1 / _drain(made, kind, "chain", CHAIN, partial(_begin, chain))
    report.figure(f"{kind}: a step of a chain of {CHAIN}", link * 1e6, "us")
    report.figure(f"{kind}: a step of a chain, times a bare one", link / bare, "ratio", at_most=LINK)


def _begin(build: Callable[[Task], Workflow], app: App, task: Task) -> None:
    app.start_workflow(build(task))


def fan(task: Task) -> Workflow:
    """One, then all others side by side, then one."""
    flow = Workflow("fan")
    first = flow.step("first", task.job())
    middle = [flow.step(f"middle-{n}", task.job(), after=[first]) for n in range(STEPS - 2)]
    flow.step("last", task.job(), after=middle)
    return flow


def layered(task: Task) -> Workflow:
    """Ten layers; each step after three random ones of the layer before."""
    flow, rng = Workflow("layered"), random.Random(5)
    for layer in range(10):
        for n in range(STEPS // 10):
            before = rng.sample(range(STEPS // 10), 3) if layer else []
            flow.step(f"{layer}-{n}", task.job(), after=[f"{layer - 1}-{m}" for m in before])
    return flow


def chain(task: Task) -> Workflow:
    flow = Workflow("chain")
    for n in range(CHAIN):
        flow.step(f"{n}", task.job(), after=[f"{n - 1}"] if n else [])
    return flow


def _app(made: Databases, kind: str, name: str) -> tuple[App, Task, str]:
    url = made.new(kind, f"workflows_{name}_{new_id()[-6:]}")
    app = App(url)
    app.migrate()

    @app.task(name="nothing")
    async def nothing() -> None: ...

    app.sync()
    return app, nothing, url


def _start(made: Databases, kind: str, name: str, build: Callable[[Task], Any]) -> float:
    """Seconds, the median of several on a database that is warm. What is started is built before."""
    app, task, _ = _app(made, kind, name)
    times: list[float] = []
    for _ in range(ROUNDS + 1):
        built = build(task)
        before = perf_counter()
        if isinstance(built, Workflow):
            app.start_workflow(built)
        else:
            app.enqueue_many(built)
        times.append(perf_counter() - before)
    app.close()
    return median(times[1:])


def _drain(made: Databases, kind: str, name: str, n: int, begin: Callable[[App, Task], object]) -> float:
    """Jobs per second from the first claim to the last outcome, by one worker in a process of its own."""
    app, task, url = _app(made, kind, name)
    begin(app, task)
    program = "from bench.worker_app import app; app.run_worker(burst=True, concurrency=100)"
    subprocess.run([sys.executable, "-c", program], env={**os.environ, "PERDURE_URL": url}, check=True)
    counts = app.count_jobs()
    assert counts == {"default": {"succeeded": n}}, counts
    app.close()
    first, last = _span(url, kind)
    return n / (last - first)


def _span(url: str, kind: str) -> tuple[float, float]:
    """From the first claim to the last outcome, in seconds."""
    if kind == "postgres":
        with psycopg.connect(url) as connection:
            row = connection.execute(
                "SELECT extract(epoch FROM min(started_at)), extract(epoch FROM max(finished_at)) FROM perdure.job"
            ).fetchone()
            assert row is not None
            return float(row[0]), float(row[1])
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
        (begun, ended) = file.execute("SELECT min(started_at), max(finished_at) FROM perdure_job").fetchone()
    return begun / 1e6, ended / 1e6


def _bare(made: Databases, kind: str) -> float:
    """Seconds for one job that is finished and the next that is claimed, in one commit."""
    app, task, _ = _app(made, kind, "bare")
    app.enqueue_many([task.job() for _ in range(SINGLES + 1)])
    ledger = app.ledger
    ledger.register("bare", name="bare", lease=600 * SECOND)
    (job,) = ledger.claim("bare", tasks=["nothing"], n=1)
    times: list[float] = []
    for _ in range(SINGLES):
        before = perf_counter()
        _, (job,) = ledger.cycle("bare", [Succeeded(job.lease, "null")], tasks=["nothing"], n=1)
        times.append(perf_counter() - before)
    app.close()
    return median(times)


if __name__ == "__main__":
    sys.exit(main())
