"""Programs beside a test: start them as users do, signal them, kill them, read their output."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from tests.harness.waiting import NEVER, until

ROOT = Path(__file__).parents[2]
KILLED = -signal.SIGKILL

Environment = Mapping[str, str]


def python(*args: object) -> list[str]:
    """This Python, where every warning is an error: ``python("-c", script)``, ``python("-m", "perdure", …)``."""
    return [sys.executable, "-W", "error", *map(str, args)]


def start(*args: object, cwd: Path = ROOT, env: Environment | None = None) -> subprocess.Popen[str]:
    """Start Python with these arguments and pipes to it. Use it as a context: its end is awaited there.

    The end of the context closes the pipes first. Where the exit code matters, call ``communicate`` before: a program
    that still prints would end with 120.
    """
    pipe = subprocess.PIPE
    return subprocess.Popen(
        python(*args), cwd=cwd, env=_environment(env), stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )


def run(*args: object, cwd: Path = ROOT, env: Environment | None = None) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments to its end."""
    return subprocess.run(
        python(*args), cwd=cwd, env=_environment(env), capture_output=True, text=True, timeout=NEVER
    )


def run_script(script: str, *args: object, options: tuple[str, ...] = ()) -> str:
    """Run a script that must succeed without warnings; return its output."""
    ran = run(*options, "-c", script, *args)
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


def run_cli(*args: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user does."""
    return run("-m", "perdure", *args, cwd=cwd, env=env)


@contextmanager
def conversation(*args: object, env: Environment | None = None) -> Iterator[Callable[[str], str]]:
    """Start a program that prints ``ready`` and then answers each line with a line.

    Call what is yielded with a line. At the end the program's input is closed, and it must end well.
    """
    with start(*args, env=env) as program:
        assert read_line(program) == "ready", program.communicate()[1]
        yield lambda line: ask(program, line)
        _, errors = program.communicate(timeout=NEVER)
    assert program.returncode == 0, errors


def ask(program: subprocess.Popen[str], line: str) -> str:
    """Write a line to a program; returns the line it answers."""
    tell(program, line)
    return read_line(program)


def tell(program: subprocess.Popen[str], line: str = "") -> None:
    assert program.stdin is not None
    program.stdin.write(f"{line}\n")
    program.stdin.flush()


def read_line(program: subprocess.Popen[str]) -> str:
    assert program.stdout is not None
    return program.stdout.readline().removesuffix("\n")


class Process:
    """A long-running program whose output goes to a file."""

    def __init__(self, *args: object, log: Path, cwd: Path = ROOT, env: Environment | None = None) -> None:
        self.path = log
        with log.open("w") as file:
            self.process = subprocess.Popen(
                python(*args),
                cwd=cwd,
                env=_environment(env),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )

    @property
    def log(self) -> str:
        return self.path.read_text()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def wait_for(self, text: str) -> None:
        """Return once it has printed this; fail if it ends before."""
        until(lambda: text in self.log or not self.alive)
        assert text in self.log, f"never printed {text!r}:\n{self.log}"

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def suspend(self, url: str) -> None:
        """Stop it with SIGSTOP, but not while it holds the write lock of a SQLite file, which would stop all others."""
        self._suspend()
        while url.startswith("sqlite") and not _is_writable(url.removeprefix("sqlite:///")):
            self.signal(signal.SIGCONT)
            self._suspend()

    def _suspend(self) -> None:
        self.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)  # the signal arrives a little later

    def stop(self) -> int:
        """In order."""
        self.signal(signal.SIGTERM)
        return self.end()

    def kill(self) -> None:
        """Kill it with SIGKILL. It must not have ended by itself."""
        self.process.kill()
        self.expect(KILLED)

    def end(self) -> int:
        """Wait until it has ended; return its exit code."""
        try:
            return self.process.wait(NEVER)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"does not end:\n{self.log}") from None

    def expect(self, code: int) -> None:
        """Wait until it has ended; its exit code must be this."""
        ended = self.end()
        assert ended == code, f"ended with {ended}:\n{self.log}"

    def remove(self) -> None:
        """End it at the end of a test, whatever its state."""
        if self.alive:
            self.process.kill()
            self.end()


def _is_writable(path: str) -> bool:
    with closing(sqlite3.connect(path, timeout=1, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
    return True


def _environment(more: Environment | None) -> dict[str, str]:
    return {**os.environ, **(more or {})}
