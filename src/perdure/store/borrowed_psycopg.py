"""How the transaction of a caller's psycopg connection is joined, blocking or async."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from perdure.errors import StoreBusy, UnsupportedConnection
from perdure.ops.op import Kind, Row, Rows
from perdure.store.borrowed import Batch, Flavour, Run, Said
from perdure.store.postgres import PostgresStore
from perdure.store.postgres_adapt import adapt
from perdure.store.postgres_errors import Cure, diagnose
from perdure.store.postgres_transaction import NOTIFY, notice
from perdure.store.store import Store


def _elsewhere(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], store: Store) -> bool:
    """By name: the same server may have other addresses, behind a pooler or from another network."""
    assert isinstance(store, PostgresStore)
    return store.database is not None and connection.info.dbname != store.database


@contextmanager
def _join(connection: psycopg.Connection[Any], kind: Kind) -> Iterator[Run]:
    _refuse(connection)
    yield partial(_run, connection)


@contextmanager
def _join_async(connection: psycopg.AsyncConnection[Any], kind: Kind) -> Iterator[Run]:
    _refuse(connection)
    yield partial(_run_async, connection)


def _refuse(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Outside autocommit psycopg itself begins a transaction with the first statement."""
    pgconn = connection.pgconn
    status = pgconn.transaction_status
    if connection.closed or status == TransactionStatus.UNKNOWN:
        raise UnsupportedConnection("The connection is closed.", code="conn.closed")
    if pgconn.pipeline_status != PipelineStatus.OFF:
        raise UnsupportedConnection(
            "The connection is in pipeline mode: leave it first.", code="conn.pipeline"
        )
    if status == TransactionStatus.INERROR:
        raise UnsupportedConnection("The transaction has failed: roll it back first.", code="conn.aborted")
    if status == TransactionStatus.ACTIVE:
        raise UnsupportedConnection("The connection is still busy with a statement.", code="conn.busy")
    if status == TransactionStatus.IDLE and connection.autocommit:
        raise UnsupportedConnection(
            "The connection is in autocommit mode and no transaction is open: begin one first.",
            code="conn.autocommit",
        )
    if connection.info.encoding != "utf-8":
        raise UnsupportedConnection("The connection's client_encoding is not UTF8.", code="conn.encoding")


def _run(connection: psycopg.Connection[Any], batch: Batch) -> list[Rows]:
    # A cursor of our own: neither their cursor_factory, their row_factory nor their adapters matter.
    cursors = [psycopg.Cursor(connection, row_factory=tuple_row) for _ in batch]
    with connection.pipeline():
        for cursor, (sql, params) in zip(cursors, batch, strict=True):
            _adapt(cursor)
            cursor.execute(sql.encode(), params, prepare=False, binary=True)
    return [cursor.fetchall() if cursor.description else [] for cursor in cursors]


async def _run_async(connection: psycopg.AsyncConnection[Any], batch: Batch) -> list[Rows]:
    cursors = [psycopg.AsyncCursor(connection, row_factory=tuple_row) for _ in batch]
    async with connection.pipeline():
        for cursor, (sql, params) in zip(cursors, batch, strict=True):
            _adapt(cursor)
            await cursor.execute(sql.encode(), params, prepare=False, binary=True)
    return [await cursor.fetchall() if cursor.description else [] for cursor in cursors]


def _adapt(cursor: psycopg.Cursor[Row] | psycopg.AsyncCursor[Row]) -> None:
    adapt(cursor.adapters, also=(str, int, float, bool))


def _translate(error: BaseException) -> BaseException:
    if not isinstance(error, psycopg.Error):
        return error
    diagnosis = diagnose(error)
    if diagnosis.cure is Cure.AGAIN:
        return StoreBusy("Others were in the way of your transaction: run it again.", code="store.contended")
    return diagnosis.error


def _notice(store: Store, topics: frozenset[str]) -> Batch:
    """Delivered when the caller commits."""
    assert isinstance(store, PostgresStore)
    params = notice(store.channel, topics)
    return [Said(NOTIFY, params)] if params else []


PSYCOPG: Final = Flavour("postgres", "blocking", _elsewhere, _join, _notice, _translate)
PSYCOPG_ASYNC: Final = Flavour("postgres", "async", _elsewhere, _join_async, _notice, _translate)
