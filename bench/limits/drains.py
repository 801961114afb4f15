"""Drains of prepared databases, each by one worker in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.drain import span
from bench.limits import rows
from bench.limits.program import SERVER, Jobs
from bench.servers import Databases, copy, remove

ROOT = Path(__file__).parents[2]
PATIENCE = 300.0


class Prepared(NamedTuple):
    """A database that is copied for each drain. The jobs with ids from ``first`` to ``last`` are measured."""

    url: str
    tasks: tuple[str, ...]
    """What the worker has."""
    n: int = 0
    first: str = ""
    last: str = ""
    source: Path = ROOT
    """The checkout whose perdure runs."""


class Drained(NamedTuple):
    """Jobs a second, CPU per job in microseconds, and seconds from the worker's start to its first measured job.

    The CPU is that of the worker and, on PostgreSQL, of all processes of the server.
    """

    rate: float
    cpu: float
    first_start: float


class Bench:
    """Prepares and drains databases of one kind."""

    def __init__(self, made: Databases, kind: str) -> None:
        self.kind = kind
        self._made = made
        self._number = 0

    def prepare(
        self, *fillings: Jobs, tasks: Sequence[str] = (), aside: bool = False, source: Path = ROOT
    ) -> Prepared:
        """A database with these jobs, of which the last kind is measured. ``tasks``: of the worker, if it has others.

        ``aside``: let a worker set jobs aside before the last kind is enqueued.
        """
        given = tuple(tasks or dict.fromkeys(jobs.task for jobs in fillings))
        prepared = Prepared(self._made.new(self.kind, self._name()), given, source=source)
        for i, jobs in enumerate(fillings):
            if aside and i == len(fillings) - 1:
                self._set_aside(prepared)
            prepared = self._fill(prepared, jobs)
        rows.rest(prepared.url)
        return prepared

    def drain(self, prepared: Prepared) -> Drained:
        run = prepared._replace(url=copy(prepared.url, self._name()))
        rows.checkpoint(run.url)
        used: float = self._ask(run, "work", run.n)["cpu"]
        done, seconds = span(run.url, run.first, run.last)
        assert done == run.n, f"{done} of {run.n} jobs have succeeded"
        drained = Drained(done / seconds, used / done * 1e6, rows.first_start(run.url, run.first, run.last))
        remove(run.url)
        return drained

    def waits(self, prepared: Prepared, jobs: Jobs) -> list[float]:
        """Seconds from the enqueue to the start of each of these jobs, which come while the worker is busy."""
        run = prepared._replace(url=copy(prepared.url, self._name()))
        worker = self._start(run, "work", jobs.n)
        try:
            rows.until_running(run.url)
            run = self._fill(run, jobs)
            worker.wait(PATIENCE)
        finally:
            worker.kill()
        waits = rows.waits(run.url, run.first, run.last)
        assert len(waits) == jobs.n
        remove(run.url)
        return waits

    def _fill(self, prepared: Prepared, jobs: Jobs) -> Prepared:
        ids = self._ask(prepared, "fill", json.dumps(jobs))
        return prepared._replace(n=jobs.n, first=ids["first"], last=ids["last"])

    def _set_aside(self, prepared: Prepared) -> None:
        """Run a worker until no job that is due later stands in the index of claims."""
        worker = self._start(prepared, "work", 1)
        try:
            rows.until_set_aside(prepared.url)
        finally:
            worker.terminate()
            worker.wait()

    def _name(self) -> str:
        self._number += 1
        return f"limits-{os.getpid()}-{self._number}"

    def _ask(self, prepared: Prepared, command: str, given: object) -> dict[str, Any]:
        process = self._start(prepared, command, given)
        try:
            answer, _ = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
        assert process.returncode == 0, f"{command} ended with {process.returncode}"
        said: dict[str, Any] = json.loads(answer)
        return said

    def _start(self, prepared: Prepared, command: str, given: object) -> subprocess.Popen[str]:
        path = os.pathsep.join([str(prepared.source / "src"), str(ROOT)])
        server = {SERVER: str(self._made.data_directory)} if self.kind == "postgres" else {}
        return subprocess.Popen(
            [sys.executable, "-m", "bench.limits.program", command, json.dumps(prepared.tasks), str(given)],
            env={**os.environ, **server, "PERDURE_URL": prepared.url, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            text=True,
        )
