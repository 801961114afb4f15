"""Join the transaction of a caller's SQLite connection, of ``sqlite3`` or aiosqlite."""

from __future__ import annotations

import os
import sqlite3
from typing import Any, Final

from perdure.errors import StoreBusy
from perdure.ops.op import Access, Rows
from perdure.store.borrowed import refusals
from perdure.store.borrowed.join import (
    Batch,
    Batches,
    BoundStatement,
    DialectJoin,
    DriverAdapter,
    Opening,
    State,
    Uninterruptible,
)
from perdure.store.sqlite.connect import rows_in
from perdure.store.sqlite.errors import translate
from perdure.store.sqlite.store import SqliteStore
from perdure.store.store import Store

# Older versions can corrupt a WAL when one connection commits while another connection checkpoints.
_SAFE_CHECKPOINTS: Final = (3, 51, 3)

_FILES = BoundStatement("PRAGMA database_list", {})
_VERSION = BoundStatement("SELECT sqlite_version()", {})
_NO_CHECKPOINTS = BoundStatement("PRAGMA wal_autocheckpoint = 0", {})
_BEGIN_TO_READ = BoundStatement("BEGIN", {})
_BEGIN = BoundStatement("BEGIN IMMEDIATE", {})
_ROLLBACK = BoundStatement("ROLLBACK", {})


def _open_transaction(store: Store, access: Access, state: State) -> Batches[Opening]:
    files, [(version,)] = yield Uninterruptible([_FILES, _VERSION])
    assert isinstance(store, SqliteStore)
    main = next(file for _, name, file in files if name == "main")
    # A database in memory belongs to one connection, so a caller's connection cannot be on our database.
    if not main or os.path.realpath(main) != store.path:
        raise refusals.elsewhere()
    if tuple(map(int, version.split("."))) < _SAFE_CHECKPOINTS:
        yield Uninterruptible([_NO_CHECKPOINTS])
    if not state.begin:
        return Opening()
    # After an error, roll back a transaction that we began: it has no work of the caller, but blocks all writers.
    return Opening([_BEGIN_TO_READ if access == "read" else _BEGIN], [_ROLLBACK])


def _notice(store: Store, topics: frozenset[str]) -> Batch:
    """No statements: other processes notice the commit itself."""
    return ()


def _look(connection: sqlite3.Connection) -> State:
    try:
        connection.cursor(sqlite3.Cursor).close()
    except sqlite3.ProgrammingError:
        raise refusals.of_another_thread() from None
    return _state(connection)


async def _look_async(connection: Any) -> State:
    try:
        # aiosqlite does not expose ``autocommit``. sqlite3 does, but only in the connection's own thread.
        state: State = await connection._execute(_state, connection._conn)
    except ValueError:
        raise refusals.closed() from None
    return state


def _state(connection: sqlite3.Connection) -> State:
    """Whether to begin a transaction, as sqlite3 would at the caller's next statement. Refuse autocommit mode."""
    if connection.in_transaction:
        return State()
    # Python 3.12 added the attribute. If it is -1 or does not exist, isolation_level decides.
    autocommit = getattr(connection, "autocommit", -1)
    if autocommit is True or (autocommit == -1 and connection.isolation_level is None):
        raise refusals.autocommit()
    return State(begin=True)


def _run(connection: sqlite3.Connection, batch: Batch) -> list[Rows]:
    # We make our own cursor, which is independent of the connection's cursors and row_factory.
    cursor = connection.cursor(sqlite3.Cursor)
    cursor.row_factory = None
    texts, connection.text_factory = connection.text_factory, str
    try:
        return [rows_in(cursor.execute(sql, params)) for sql, params in batch]
    finally:
        connection.text_factory = texts
        cursor.close()


async def _run_async(connection: Any, batch: Batch) -> list[Rows]:
    async with connection.cursor() as cursor:
        cursor.row_factory = None
        texts, connection.text_factory = connection.text_factory, str
        try:
            answers = []
            for sql, params in batch:
                await cursor.execute(sql, params)
                answers.append(await cursor.fetchall() if cursor.description else [(cursor.rowcount,)])
            return answers
        finally:
            connection.text_factory = texts


def _translate(error: BaseException) -> BaseException:
    if getattr(error, "sqlite_errorname", "") == "SQLITE_BUSY_SNAPSHOT":
        return StoreBusy(
            "Another transaction wrote after yours began to read: begin yours with BEGIN IMMEDIATE."
        )
    return translate(error) if isinstance(error, Exception) else error


_SQLITE = DialectJoin("sqlite", _open_transaction, _notice)

SQLITE3: Final = DriverAdapter(_SQLITE, "sync", _look, _run, _translate)
AIOSQLITE: Final = DriverAdapter(_SQLITE, "async", _look_async, _run_async, _translate)
