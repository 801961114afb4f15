"""A whole worker: how much it does, how soon it begins, what it costs to wait: `make bench-worker`."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median, quantiles

import psycopg

from bench import bare_listener
from bench.drain import drain
from bench.report import Report
from bench.servers import Databases, databases
from perdure import App
from perdure.client.job import Job
from perdure.client.task import AsyncTask

JOBS = 20_000
SINGLES, BLOCK = 300, 30
"""Jobs enqueued one by one to measure how soon they run; ours and the bare loop's take turns in blocks."""
IDLE_SECONDS = 15.0
STARTS = 15
LEASE = 5.0
"""Of the workers that are killed, in seconds."""

IDLE_CPU, IDLE_RSS = 1.0, {"sqlite": 45.0, "postgres": 60.0}
RERUN = {"sqlite": 2.0, "postgres": LEASE + 5.0}

CLICK = "import click\n@click.group()\ndef main(): pass\n@main.command()\ndef a(): pass\nmain()"


def main() -> int:
    report = Report()
    _measure_starts(report)
    with databases(report) as made:
        for kind in ("sqlite", "postgres"):
            _measure_throughput(report, made, kind)
            _measure_pick_up(report, made, kind)
            _measure_idle(report, made, kind)
            _measure_rerun(report, made, kind)
    return report.status()


@contextmanager
def worker(url: str, *options: str, lease: float = 30.0) -> Iterator[subprocess.Popen[str]]:
    """A worker of bench.worker_app in a process of its own, ready to claim."""
    program = (
        f"import logging, sys; logging.basicConfig(level='INFO', stream=sys.stdout, format='%(message)s');"
        f"from bench.worker_app import app; app.lease = {int(lease * 1_000_000)};"
        f"sys.exit(app.run_worker({', '.join(options)}))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PERDURE_URL": url},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("Worker "):
            assert process.poll() is None, "the worker ended before it began"
        yield process
    finally:
        process.kill()
        process.wait()


def _app(made: Databases, kind: str, name: str) -> tuple[App, str]:
    url = made.new(kind, name)
    app = App(url)
    app.migrate()
    return app, url


def _measure_throughput(report: Report, made: Databases, kind: str) -> None:
    rate = drain(made.new(kind, "throughput"), JOBS)
    report.figure(f"{kind}: no-op async jobs by one worker", rate, "jobs/s")


def _measure_pick_up(report: Report, made: Databases, kind: str) -> None:
    app, url = _app(made, kind, "pick_up")

    @app.task(name="begun")
    async def begun() -> int:
        return time.monotonic_ns()

    begun.enqueue().cancel()  # the database knows the task

    def one() -> float:
        before = time.monotonic_ns()
        job: Job[int] = begun.enqueue()
        return (job.get(timeout=10) - before) / 1e6

    with worker(url):
        if kind == "sqlite":
            _tell_latency(
                report, "sqlite: pick-up in another process", [one() for _ in range(SINGLES)], p50=5.0
            )
        else:
            _beside_the_bare_loop(report, url, one)
    waits = asyncio.run(_in_the_same_process(app, begun))
    _tell_latency(report, f"{kind}: pick-up in the same process", waits)
    app.close()


async def _in_the_same_process(app: App, begun: AsyncTask[[], int]) -> list[float]:
    waits: list[float] = []
    async with app.worker():
        for _ in range(SINGLES):
            before = time.monotonic_ns()
            job = await begun.aenqueue()
            waits.append((await job.aget(timeout=10) - before) / 1e6)
    return waits


def _beside_the_bare_loop(report: Report, url: str, one: Callable[[], float]) -> None:
    bare = subprocess.Popen(
        [sys.executable, "-m", "bench.bare_listener", url], stdout=subprocess.PIPE, text=True
    )
    assert bare.stdout is not None
    answers = bare.stdout
    assert answers.readline() == "ready\n"
    ours: list[float] = []
    theirs: list[float] = []
    with psycopg.connect(url, autocommit=True, prepare_threshold=0) as connection:
        for _ in range(0, SINGLES, BLOCK):
            ours += [one() for _ in range(BLOCK)]
            for _ in range(BLOCK):
                before = time.monotonic_ns()
                with connection.transaction():
                    connection.execute(bare_listener.INSERT)
                    connection.execute(f"NOTIFY {bare_listener.CHANNEL}".encode())
                theirs.append((int(answers.readline()) - before) / 1e6)
    bare.kill()
    bare.wait()
    _tell_latency(report, "postgres: pick-up in another process", ours)
    _tell_latency(report, "postgres: pick-up by the bare loop", theirs)
    for name, at, factor in (("p50", 50, 1.5), ("p99", 99, 2.0)):
        ratio = _percentile(ours, at) / _percentile(theirs, at)
        report.figure(f"postgres: pick-up {name}, ours / bare", ratio, "ratio", at_most=factor)


def _tell_latency(report: Report, name: str, waits: list[float], *, p50: float | None = None) -> None:
    report.figure(f"{name}, p50", _percentile(waits, 50), "ms", at_most=p50)
    report.figure(f"{name}, p99", _percentile(waits, 99), "ms")


def _percentile(values: list[float], at: int) -> float:
    return quantiles(values, n=100, method="inclusive")[at - 1]


def _measure_idle(report: Report, made: Databases, kind: str) -> None:
    app, url = _app(made, kind, "idle")
    app.close()
    with worker(url) as process:
        time.sleep(2)  # what a start leaves to do is not idleness
        before = _cpu_seconds(process.pid)
        time.sleep(IDLE_SECONDS)
        used = _cpu_seconds(process.pid) - before
        report.figure(f"{kind}: idle CPU", 100 * used / IDLE_SECONDS, "%", at_most=IDLE_CPU)
        report.figure(f"{kind}: idle RSS", _rss(process.pid), "MB", at_most=IDLE_RSS[kind])


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rss(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (kilobytes,) = (int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
    return kilobytes / 1000


def _measure_rerun(report: Report, made: Databases, kind: str) -> None:
    app, url = _app(made, kind, "rerun")
    note = Path(made.directory, f"{kind}-starts")
    waits: list[float] = []
    for number in range(5):
        with worker(url, lease=LEASE) as first:
            app.save_tasks()
            starts = Path(f"{note}-{number}")
            app.enqueue("linger", {"note": str(starts)})
            _until(partial(_started, starts, 1))
            with worker(url, lease=LEASE):
                killed = time.monotonic_ns()
                first.kill()
                _until(partial(_started, starts, 2))
                again = int(starts.read_text().split()[1])
                waits.append((again - killed) / 1e9)
        for job in app.list_jobs(state="running"):
            job.cancel()
    report.figure(f"{kind}: kill -9 to running again, median", median(waits), "s")
    report.figure(f"{kind}: kill -9 to running again, worst", max(waits), "s", at_most=RERUN[kind])
    app.close()


def _started(path: Path, times: int) -> bool:
    return path.exists() and path.read_text().count("\n") == times


def _until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def _measure_starts(report: Report) -> None:
    ours = "from perdure import App; App('sqlite:///x.db').task"
    imports = _ratio([*_timed(ours)], [*_timed("import asyncio, sqlite3")])
    report.figure("import, ours / asyncio and sqlite3", imports, "ratio", at_most=2.0)
    program = [sys.executable, "-m", "perdure", "--help"]
    bare = [sys.executable, "-c", CLICK, "--help"]
    report.figure("command line, ours / a bare click program", _ratio(program, bare), "ratio", at_most=1.5)


def _timed(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def _ratio(ours: list[str], bare: list[str]) -> float:
    """Of whole processes, side by side: what somebody who waits for them sees."""
    pairs = [(_seconds(ours), _seconds(bare)) for _ in range(STARTS)]
    return median(one / other for one, other in pairs)


def _seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
