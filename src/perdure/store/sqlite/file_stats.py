"""Numbers of an SQLite store that need no query."""

from __future__ import annotations

import os

from perdure.store.sqlite.connect import Database
from perdure.store.sqlite.process_state import ProcessState
from perdure.store.store import Facts


def facts(database: Database, state: ProcessState | None) -> Facts:
    """The size of the WAL's file, and the number of this process's connections."""
    return Facts(
        wal_bytes=None if database.in_memory else _size(f"{database.path}-wal"),
        connections=0 if state is None else state.connections,
    )


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
