"""How the transaction of a caller's ``sqlite3.Connection`` is joined."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from perdure.errors import StoreBusy, UnsupportedConnection
from perdure.ops.op import Kind, Rows
from perdure.store.borrowed import Batch, Flavour, Run
from perdure.store.sqlite import SqliteStore
from perdure.store.sqlite_errors import translate
from perdure.store.store import Store

# Older ones can corrupt a WAL when two connections commit and checkpoint at once.
_SAFE_CHECKPOINTS: Final = (3, 51, 3)


def _elsewhere(connection: sqlite3.Connection, store: Store) -> bool:
    """A database in memory belongs to one connection, so nobody else's leads there."""
    assert isinstance(store, SqliteStore)
    files = {
        name: file for _, name, file in connection.cursor(sqlite3.Cursor).execute("PRAGMA database_list")
    }
    return not files["main"] or os.path.realpath(files["main"]) != store.path


@contextmanager
def _join(connection: sqlite3.Connection, kind: Kind) -> Iterator[Run]:
    cursor = _cursor(connection)
    begins = _would_begin(connection)
    texts, connection.text_factory = connection.text_factory, str
    try:
        _set_up(cursor, begin=("BEGIN" if kind == "read" else "BEGIN IMMEDIATE") if begins else None)
        yield lambda batch: _run(cursor, batch)
    except BaseException:
        # Nothing of the caller's is in a transaction that we began; left open it would lock out every writer.
        if begins and connection.in_transaction:
            cursor.execute("ROLLBACK")
        raise
    finally:
        connection.text_factory = texts
        cursor.close()


def _cursor(connection: sqlite3.Connection) -> sqlite3.Cursor:
    try:
        cursor = connection.cursor(sqlite3.Cursor)
    except sqlite3.ProgrammingError:
        raise UnsupportedConnection(
            "The connection is closed, or belongs to another thread.", code="conn.closed"
        ) from None
    cursor.row_factory = None
    return cursor


def _would_begin(connection: sqlite3.Connection) -> bool:
    """Whether the caller's next statement would begin a transaction; if it would commit at once, refuse."""
    if connection.in_transaction:
        return False
    # Python 3.12 adds the attribute; -1 is the older way, where isolation_level decides.
    autocommit = getattr(connection, "autocommit", -1)
    if autocommit is True or (autocommit == -1 and connection.isolation_level is None):
        raise UnsupportedConnection(
            "The connection is in autocommit mode and no transaction is open: begin one first.",
            code="conn.autocommit",
        )
    return True


def _set_up(cursor: sqlite3.Cursor, *, begin: str | None) -> None:
    try:
        (version,) = cursor.execute("SELECT sqlite_version()").fetchone()
        if tuple(map(int, version.split("."))) < _SAFE_CHECKPOINTS:
            cursor.execute("PRAGMA wal_autocheckpoint = 0")
        if begin:
            cursor.execute(begin)
    except sqlite3.Error as error:
        raise _translate(error) from None


def _run(cursor: sqlite3.Cursor, batch: Batch) -> list[Rows]:
    return [cursor.execute(sql, params).fetchall() for sql, params in batch]


def _translate(error: BaseException) -> BaseException:
    if getattr(error, "sqlite_errorname", "") == "SQLITE_BUSY_SNAPSHOT":
        return StoreBusy(
            "Somebody wrote since your transaction began to read: begin it with BEGIN IMMEDIATE."
        )
    return translate(error) if isinstance(error, Exception) else error


def _notice(store: Store, topics: frozenset[str]) -> Batch:
    """Other processes notice a commit by themselves."""
    return ()


SQLITE3: Final = Flavour("sqlite", "blocking", _elsewhere, _join, _notice, _translate)
