"""Workers and a producer in processes of their own, started as users start them, and how they are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from subprocess import Popen

from perdure.internal import failpoints, journal
from tests.harness.waiting import until
from tests.kills.app import LEASE
from tests.kills.history import Note, notes_of

ROOT = Path(__file__).parents[2]
KILLED = -signal.SIGKILL
PATIENCE = 60.0


class Hand:
    """One process. What it prints is kept for whoever has to find out why a test failed."""

    def __init__(
        self, name: str, history: Path, prints: Path, command: list[str], environment: dict[str, str]
    ) -> None:
        self.name = name
        self._history = history
        self._command = command
        self._prints = prints
        with prints.open("wb") as file:
            self._process: Popen[bytes] = Popen(
                [sys.executable, "-m", *command],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """With SIGKILL, which nobody can catch. It may not have died before of anything else."""
        self._process.kill()
        self.expect(KILLED)

    def stop(self) -> None:
        """In order."""
        self.signal(signal.SIGTERM)
        self.expect(0)

    def expect(self, code: int) -> None:
        """It ends so, in its own time."""
        until(lambda: not self.lives, seconds=PATIENCE)
        ended = self._process.returncode
        assert ended == code, f"{self._command} ended with {ended}:\n{self._prints.read_text()}"

    def notes(self) -> list[Note]:
        return notes_of(self._history, self._process.pid)

    def identities(self) -> set[str]:
        """Under which it has started jobs: more than one if it was believed dead."""
        return {note.worker for note in self.notes() if note.worker is not None}


class Fleet:
    """All that run; nobody is left behind."""

    def __init__(self, url: str, directory: Path) -> None:
        self.history = directory / "history"
        self.enough = directory / "enough"
        self._prints = directory / "prints"
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")},
            "PERDURE_URL": url,
            journal.VARIABLE: str(self.history),
            LEASE: "1",
        }
        self._hands: list[Hand] = []
        self.history.mkdir()
        self._prints.mkdir()

    def start_worker(self, failpoint: str = "") -> Hand:
        options = ("--concurrency", "8", "--processes", "1", "--drain", "20", "--name", self._next_name())
        return self._start(failpoint, "perdure", "worker", "tests.kills.app:app", *options)

    def start_producer(self, seed: int, failpoint: str = "") -> Hand:
        return self._start(failpoint, "tests.kills.producer", str(seed), str(self.enough))

    def survivors(self) -> list[int]:
        """Who still runs with our environment, also as somebody's child."""
        mark = f"{journal.VARIABLE}={self.history}\0".encode()
        return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if _has(path, mark)]

    def _start(self, failpoint: str, *command: str) -> Hand:
        name = self._next_name()
        environment = {**self._environment, failpoints.VARIABLE: failpoint}
        hand = Hand(name, self.history, self._prints / name, [*command], environment)
        self._hands.append(hand)
        return hand

    def _next_name(self) -> str:
        return f"hand {len(self._hands)}"

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *exc: object) -> None:
        for hand in self._hands:
            if hand.lives:
                hand.kill()


def _has(path: Path, mark: bytes) -> bool:
    try:
        return mark in path.read_bytes()
    except OSError:  # it is gone, or not ours
        return False
