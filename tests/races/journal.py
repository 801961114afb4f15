"""A record outside the database of what each process did: a line is written before the next action."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Journal:
    """One process's own file. A line that was written survives the process."""

    def __init__(self, directory: Path) -> None:
        flags = os.O_CREAT | os.O_APPEND | os.O_WRONLY
        self._file = os.open(directory / f"{os.getpid()}.journal", flags, 0o600)

    def note(self, what: str, facts: object) -> None:
        os.write(self._file, json.dumps([what, facts]).encode() + b"\n")


class Journals:
    """All of them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.directory.mkdir()

    def size(self) -> int:
        return sum(path.stat().st_size for path in self.directory.iterdir())

    def have_grown_to(self, size: int) -> bool:
        return self.size() >= size

    def authors(self, what: str) -> int:
        """How many processes have noted such a thing."""
        return sum(bool(list(_notes(path, what))) for path in self.directory.iterdir())

    def all(self, what: str) -> list[Any]:
        """Every fact of this kind, in the order of each process."""
        return [fact for path in sorted(self.directory.iterdir()) for fact in _notes(path, what)]


def _notes(path: Path, wanted: str) -> Iterator[Any]:
    # A process may have been killed in the middle of its last line.
    for line in path.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):
            what, fact = json.loads(line)
            if what == wanted:
                yield fact
