"""Read the journals of processes (see perdure/internal/journal.py)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from perdure.model.job import Lease


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """One line. Which fields are set depends on its kind."""

    what: str
    jobs: list[str] = []
    at: int = 0
    pid: int = 0
    phase: str | None = None
    keys: dict[str, tuple[str, str, str]] = {}
    answered: list[str] = []
    token: int = 0
    worker: str | None = None
    parent: str | None = None
    at_once: bool = False
    why: str | None = None
    outcome: str | None = None
    checkpoint: Any = None
    place: str | None = None

    @property
    def lease(self) -> Lease:
        (job,) = self.jobs
        return Lease(job, self.token)


class History:
    """All of them, in the order of each process."""

    def __init__(self, notes: Sequence[Note]) -> None:
        self._notes: dict[str, list[Note]] = defaultdict(list)
        for note in notes:
            self._notes[note.what].append(note)

    @classmethod
    def read(cls, directory: Path) -> History:
        return cls([note for path in sorted(directory.iterdir()) for note in _read(path)])

    def all(self, what: str) -> list[Note]:
        return self._notes.get(what, [])

    def enqueues(self, phase: str) -> Iterator[Note]:
        return (note for note in self.all("enqueue") if note.phase == phase)

    def leases(self, what: str) -> list[Lease]:
        return [note.lease for note in self.all(what)]

    def by_job(self, what: str) -> Mapping[str, set[int]]:
        """By job, the tokens for which this was noted."""
        tokens: dict[str, set[int]] = defaultdict(set)
        for job, token in self.leases(what):
            tokens[job].add(token)
        return tokens


def notes_of(directory: Path, pid: int) -> list[Note]:
    """What one process has noted so far."""
    return [note for path in directory.glob(f"*-{pid}.jsonl") for note in _read(path)]


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())


_decode = msgspec.json.Decoder(Note).decode


def _read(path: Path) -> Iterator[Note]:
    for line in path.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):  # the last one may still be under way, or its writer was killed
            yield _decode(line)
