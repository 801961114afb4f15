"""Workers and a producer in processes of their own, started as users start them, and how they are killed."""

from __future__ import annotations

from pathlib import Path

from perdure.internal import failpoints, journal
from tests.harness.processes import Process
from tests.kills.app import LEASE
from tests.kills.history import Note, notes_of


class Participant(Process):
    """One process, with the notes it has written to the journal."""

    def __init__(self, name: str, history: Path, log: Path, command: list[str], env: dict[str, str]) -> None:
        super().__init__("-W", "default", "-m", *command, log=log, env=env)
        self.name = name
        self._history = history

    def notes(self) -> list[Note]:
        return notes_of(self._history, self.pid)

    def identities(self) -> set[str]:
        """The worker ids under which it has started jobs: more than one if it was taken for dead."""
        return {note.worker for note in self.notes() if note.worker is not None}


class Fleet:
    """The running processes. All are stopped at the end."""

    def __init__(self, url: str, directory: Path) -> None:
        self.history = directory / "history"
        self.enough = directory / "enough"
        self._prints = directory / "prints"
        self._environment = {
            "PERDURE_URL": url,
            journal.VARIABLE: str(self.history),
            LEASE: "1",
        }
        self._participants: list[Participant] = []
        self.history.mkdir()
        self._prints.mkdir()

    def start_worker(self, failpoint: str = "") -> Participant:
        options = ("--concurrency", "8", "--processes", "1", "--drain", "20", "--name", self._next_name())
        return self._start(failpoint, "perdure", "worker", "tests.kills.app:app", *options)

    def start_producer(self, seed: int, failpoint: str = "") -> Participant:
        return self._start(failpoint, "tests.kills.producer", str(seed), str(self.enough))

    def survivors(self) -> list[int]:
        """The processes that still run with our environment, including children."""
        mark = f"{journal.VARIABLE}={self.history}\0".encode()
        return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if _has(path, mark)]

    def _start(self, failpoint: str, *command: str) -> Participant:
        name = self._next_name()
        environment = {**self._environment, failpoints.VARIABLE: failpoint}
        participant = Participant(name, self.history, self._prints / name, [*command], environment)
        self._participants.append(participant)
        return participant

    def _next_name(self) -> str:
        return f"participant {len(self._participants)}"

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *exc: object) -> None:
        for participant in self._participants:
            participant.remove()


def _has(path: Path, mark: bytes) -> bool:
    try:
        return mark in path.read_bytes()
    except OSError:  # it is gone, or not ours
        return False
