"""What an SQLite store knows of itself without asking the database."""

from __future__ import annotations

import os

from perdure.store.sqlite.connect import Database
from perdure.store.sqlite.process_state import ProcessState
from perdure.store.store import Facts


def facts(database: Database, state: ProcessState | None) -> Facts:
    """Of the file, and of what this process has open."""
    return Facts(
        wal_bytes=None if database.in_memory else _size(f"{database.path}-wal"),
        connections=0 if state is None else state.connections,
    )


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
