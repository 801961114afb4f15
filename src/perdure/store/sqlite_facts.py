"""What an SQLite store knows of itself without asking the database."""

from __future__ import annotations

import os

from perdure.store.sqlite_connect import Database
from perdure.store.sqlite_session import Session
from perdure.store.store import Facts


def facts(database: Database, session: Session | None) -> Facts:
    """Of the file, and of what this process has open."""
    return Facts(
        wal_bytes=None if database.in_memory else _size(f"{database.path}-wal"),
        connections=0 if session is None else session.connections,
    )


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
