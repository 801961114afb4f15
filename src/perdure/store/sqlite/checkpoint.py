"""Checkpoints: copy the WAL into the database file, but never while anybody commits.

SQLite before 3.51.3 can lose committed pages when one connection commits while another connection checkpoints. So our
connections never checkpoint automatically, and we hold the write lock during a checkpoint. ``wal_checkpoint(TRUNCATE)``
alone is not enough: if it cannot get the write lock at once, it continues without the lock (seen with 3.40 and 3.53). A
connection cannot checkpoint inside its own transaction, so one connection holds the lock and another connection
checkpoints.

The first commit after a complete checkpoint starts again at the beginning of the WAL, and truncates the WAL's file to
``journal_size_limit``. So a file above that limit shows that the WAL is long and needs a checkpoint.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time

from perdure.errors import PerdureError
from perdure.store.sqlite.connect import LONGEST_WAL, Database
from perdure.store.sqlite.errors import is_busy, translate

# Seconds between two checks of the WAL's size. A check costs as much as all the Python code of a call.
_INTERVAL = 0.01

_log = logging.getLogger("perdure.store")


class Checkpoints:
    """Keeps the WAL of a database short."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: sqlite3.Connection | None = None
        self._limit = LONGEST_WAL
        self._next_look = 0.0

    def after_commit(self, writing: sqlite3.Connection) -> None:
        """Checkpoint if the WAL is long and nobody writes. ``writing``: the connection to hold the write lock with."""
        if (now := time.monotonic()) < self._next_look:
            return
        self._next_look = now + _INTERVAL
        size = self._wal_size()
        if size <= LONGEST_WAL:
            self._limit = LONGEST_WAL
        elif size > self._limit:
            try:
                self._checkpoint(writing)
            except sqlite3.Error as error:
                if is_busy(error):
                    return
                _log.warning("A checkpoint of the WAL failed: %s", translate(error))
            except PerdureError as error:
                _log.warning("A checkpoint of the WAL failed: %s", error)
            # Readers may have prevented a complete checkpoint, or a restart of the WAL. Try again only when the WAL has
            # grown further: a try after every commit would sync the database file every time.
            self._limit = size + LONGEST_WAL

    def close(self) -> None:
        if self._connection is not None:
            self._database.close(self._connection)
            self._connection = None

    def _wal_size(self) -> int:
        if self._database.in_memory:
            return 0
        try:
            return os.stat(self._database.path + "-wal").st_size
        except FileNotFoundError:
            return 0

    def _checkpoint(self, writing: sqlite3.Connection) -> None:
        if self._connection is None:
            self._connection = self._database.open(read_only=True, create=False)
        writing.execute("BEGIN IMMEDIATE")
        try:
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        finally:
            writing.execute("ROLLBACK")
