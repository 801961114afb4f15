"""What the rows of a drain say, on either database."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from datetime import timedelta
from typing import Any

import psycopg

PATIENCE = 120.0

Rows = list[tuple[Any, ...]]

FIRST_START = """
SELECT min(started_at) - (SELECT min(started_at) FROM {worker}) FROM {job} WHERE id BETWEEN {p} AND {p}
"""
WAITS = "SELECT started_at - created_at FROM {job} WHERE id BETWEEN {p} AND {p}"
RUNNING = "SELECT count(*) > 0 FROM {job} WHERE state = 'running'"
NOT_ASIDE = "SELECT count(*) FROM {job} WHERE state = 'ready' AND held IS NULL"


def first_start(url: str, first: str, last: str) -> float:
    """Seconds from the start of the worker to that of the first of these jobs."""
    (row,) = _read(url, FIRST_START, first, last)
    return _seconds(row[0])


def waits(url: str, first: str, last: str) -> list[float]:
    """Seconds from the enqueue to the start of each of these jobs."""
    return [_seconds(row[0]) for row in _read(url, WAITS, first, last)]


def until_running(url: str) -> None:
    _until(url, RUNNING, 1)


def until_set_aside(url: str) -> None:
    """Wait until no ready job is left in the index of claims."""
    _until(url, NOT_ASIDE, 0)


def _until(url: str, query: str, value: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while int(_read(url, query)[0][0]) != value:
        assert time.monotonic() < deadline, f"waited in vain for {value} from {query}"
        time.sleep(0.2)


def rest(url: str) -> None:
    """Leave the database as if it had rested since it was filled."""
    if url.startswith("postgresql"):
        _write(url, "VACUUM ANALYZE")
    checkpoint(url)


def checkpoint(url: str) -> None:
    """Write everything to the disk now, so that no drain pays for it."""
    _write(url, "CHECKPOINT" if url.startswith("postgresql") else "PRAGMA wal_checkpoint(TRUNCATE)")


def _seconds(value: timedelta | int) -> float:
    """SQLite stores microseconds."""
    return value.total_seconds() if isinstance(value, timedelta) else value / 1e6


def _read(url: str, query: str, *given: str) -> Rows:
    if url.startswith("postgresql"):
        text = query.format(job="perdure.job", worker="perdure.worker", p="%s")
        with psycopg.connect(url) as connection:
            return connection.execute(text.encode(), given).fetchall()
    text = query.format(job="perdure_job", worker="perdure_worker", p="?")
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)) as connection_:
        return connection_.execute(text, given).fetchall()


def _write(url: str, statement: str) -> None:
    if url.startswith("postgresql"):
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(statement.encode())
        return
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection_:
        connection_.execute(statement)
