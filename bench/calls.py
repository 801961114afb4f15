"""Contestants are processes: how they are asked, and how a worker of one is followed (`peers/protocol.py`)."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent


class Failed(Exception):
    """A contestant did not do what it was asked; the message says what it wrote last."""


class Program(NamedTuple):
    """How a contestant is started."""

    python: Path
    module: str
    url: str
    options: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()

    def command(self, *arguments: object) -> list[str]:
        words = [str(argument) for argument in arguments]
        return [str(self.python), "-m", self.module, self.url, *self.options, *words]


class Process:
    """One that runs and answers line by line. Its stderr goes into a file: nobody has to read it in time."""

    def __init__(self, program: Program, *arguments: object) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self.started = time.monotonic_ns()
        self._process = subprocess.Popen(
            program.command(*arguments),
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": _path(), **dict(program.environment)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,  # some peers end their whole process group
        )
        self.pid = self._process.pid
        self._lines: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        Thread(target=self._read, daemon=True).start()

    def answer(self, key: str, *, timeout: float) -> Any:
        """The value of the next line that has this key; other lines before it are skipped."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                raise Failed(f"no {key!r} within {timeout:.0f} s. {self._last_words()}") from None
            if line is None:
                raise Failed(f"ended before it told {key!r}. {self._last_words()}")
            if key in line:
                return line[key]

    def waiting(self) -> Iterator[dict[str, Any]]:
        """Lines that are here already."""
        while True:
            try:
                line = self._lines.get_nowait()
            except Empty:
                return
            if line is None:
                raise Failed(f"ended by itself. {self._last_words()}")
            yield line

    def say(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def end_of_input(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                stream.close()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                self._lines.put(json.loads(line))
        except ValueError:  # closed under us
            pass
        self._lines.put(None)

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").splitlines()
        return " | ".join(line.strip() for line in lines[-3:])[-600:]


def ask(program: Program, *arguments: object, key: str, timeout: float = 120.0) -> Any:
    """Run a command to its end; the value it told under this key."""
    with Process(program, *arguments) as process:
        return process.answer(key, timeout=timeout)


class Workers:
    """Workers of one contestant: how many handlers have begun in them all, and when the first did."""

    def __init__(self, processes: Sequence[Process]) -> None:
        self.processes = processes
        self._entered = [0] * len(processes)
        self._first: list[int] = []

    def first(self, *, timeout: float = 60.0) -> int:
        """When the first handler began."""
        self._await(lambda: bool(self._first), timeout, "no handler has begun")
        return min(self._first)

    def begun(self, n: int, *, timeout: float, during: Callable[[int, int], None] | None = None) -> None:
        """Wait until so many handlers have begun.

        ``during`` is called over and over with the first worker's process and how many it is by now.
        """

        def enough() -> bool:
            if during is not None:
                during(self.processes[0].pid, self.entered())
            return self.entered() >= n

        self._await(enough, timeout, f"not {n} handlers have begun")

    def entered(self) -> int:
        self._look()
        return sum(self._entered)

    def stop(self) -> dict[int, int]:
        """End them; when the handler of each tag began."""
        began: dict[int, int] = {}
        for process in self.processes:
            process.end_of_input()
            for tag, at in process.answer("began", timeout=30):
                began[tag] = min(at, began.get(tag, at))
        return began

    def _await(self, condition: Callable[[], bool], timeout: float, failure: str) -> None:
        deadline = time.monotonic() + timeout
        self._look()
        while not condition():
            if time.monotonic() > deadline:
                raise Failed(f"{failure} within {timeout:.0f} s, but {self.entered()}")
            time.sleep(0.005)
            self._look()

    def _look(self) -> None:
        for number, process in enumerate(self.processes):
            for line in process.waiting():
                if "first" in line:
                    self._first.append(line["first"])
                if "entered" in line:
                    self._entered[number] = line["entered"]


@contextmanager
def workers(program: Program, concurrency: int, *, count: int = 1) -> Iterator[Workers]:
    with ExitStack() as stack:
        yield Workers([stack.enter_context(Process(program, "worker", concurrency)) for _ in range(count)])


def _path() -> str:
    """The checkout's own perdure, wherever another may be installed."""
    return os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
