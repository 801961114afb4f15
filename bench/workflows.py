"""Workflows beside independent jobs: how long a start takes, how fast a graph drains: `make bench-workflows`."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import psycopg

from bench.drain import WORKER
from bench.report import Report
from bench.servers import Databases, databases
from perdure import App, Workflow
from perdure.client.task import AsyncTask
from perdure.model.job import SECOND
from perdure.model.lifecycle import Succeeded
from perdure.request.ids import new_id

STEPS = 10_000
CHAIN = 1_000
ROUNDS = 7
DRAINS = 3
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
    _measure_starts(report, made, kind)
    _measure_drains(report, made, kind)


def _measure_starts(report: Report, made: Databases, kind: str) -> None:
    """In turns, each on a database of its own that is warm. What is started is built before."""
    shapes: dict[str, Callable[[Task], Any]] = {"bulk": _jobs, "fan": fan, "layered": layered}
    apps = {name: _app(made, kind, f"start_{name}") for name in shapes}
    rounds: list[dict[str, float]] = []
    for _ in range(ROUNDS + 1):
        rounds.append({name: _start(*apps[name][:2], build) for name, build in shapes.items()})
    for app, _, _ in apps.values():
        app.close()
    del rounds[0]
    report.figure(f"{kind}: a bulk enqueue of {STEPS}", _median(rounds, "bulk") * 1000, "ms")
    for name in ("fan", "layered"):
        report.figure(f"{kind}: start of {name} {STEPS}", _median(rounds, name) * 1000, "ms")
        _tell(report, f"{kind}: start of {name}, times a bulk enqueue", rounds, name, "bulk", at_most=START)


def _measure_drains(report: Report, made: Databases, kind: str) -> None:
    """By a worker in a process of its own, in turns."""
    begins: dict[str, tuple[int, Callable[[App, Task], object]]] = {
        "alone": (STEPS, lambda app, task: app.enqueue_many(_jobs(task))),
        "fan": (STEPS, partial(_begin, fan)),
        "layered": (STEPS, partial(_begin, layered)),
        "chain": (CHAIN, partial(_begin, chain)),
    }
    rounds: list[dict[str, float]] = []
    for _ in range(DRAINS):
        seconds = {name: 1 / _drain(made, kind, name, n, begin) for name, (n, begin) in begins.items()}
        rounds.append({**seconds, "bare": _bare(made, kind)})
    report.figure(f"{kind}: {STEPS} independent jobs by one worker", 1 / _median(rounds, "alone"), "jobs/s")
    for name in ("fan", "layered"):
        report.figure(f"{kind}: {name} {STEPS} by one worker", 1 / _median(rounds, name), "steps/s")
        _tell(report, f"{kind}: {name}, share of independent jobs", rounds, "alone", name, at_least=DRAIN)
    report.figure(f"{kind}: one bare claim and finish", _median(rounds, "bare") * 1e6, "us")
    report.figure(f"{kind}: a step of a chain of {CHAIN}", _median(rounds, "chain") * 1e6, "us")
    _tell(report, f"{kind}: a step of a chain, times a bare one", rounds, "chain", "bare", at_most=LINK)


def _median(rounds: Sequence[dict[str, float]], name: str) -> float:
    return median(one[name] for one in rounds)


def _tell(
    report: Report, figure: str, rounds: Sequence[dict[str, float]], above: str, below: str, **target: float
) -> None:
    """The ratio of two neighbours, and the median of those: a machine changes its speed within seconds."""
    ratios = [one[above] / one[below] for one in rounds]
    spread = [round(min(ratios), 2), round(max(ratios), 2)]
    report.figure(figure, median(ratios), "ratio", **target, spread=spread, rounds=len(ratios))


def _jobs(task: Task) -> list[Any]:
    return [task.job() for _ in range(STEPS)]


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

    app.save_tasks()
    return app, nothing, url


def _start(app: App, task: Task, build: Callable[[Task], Any]) -> float:
    """Seconds."""
    built = build(task)
    before = perf_counter()
    if isinstance(built, Workflow):
        app.start_workflow(built)
    else:
        app.enqueue_many(built)
    return perf_counter() - before


def _drain(made: Databases, kind: str, name: str, n: int, begin: Callable[[App, Task], object]) -> float:
    """Jobs per second from the first claim to the last outcome, by one worker in a process of its own."""
    app, task, url = _app(made, kind, name)
    begin(app, task)
    subprocess.run([sys.executable, "-c", WORKER], env={**os.environ, "PERDURE_URL": url}, check=True)
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
    operations = app.operations
    operations.register("bare", name="bare", lease=600 * SECOND)
    (job,) = operations.claim("bare", tasks=["nothing"], n=1)
    times: list[float] = []
    for _ in range(SINGLES):
        before = perf_counter()
        _, (job,) = operations.cycle("bare", [Succeeded(job.lease, "null")], tasks=["nothing"], n=1)
        times.append(perf_counter() - before)
    app.close()
    return median(times)


if __name__ == "__main__":
    sys.exit(main())
