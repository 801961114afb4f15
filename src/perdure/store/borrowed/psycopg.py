"""Join the transaction of a caller's psycopg connection, blocking or async."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from perdure.errors import UnsupportedConnection
from perdure.ops.op import Row, Rows
from perdure.store.borrowed import refusals
from perdure.store.borrowed.join import Batch, DriverAdapter, State
from perdure.store.borrowed.postgres import POSTGRES, explain
from perdure.store.postgres.adapt import adapt

_CANCEL = 5.0
"""Seconds to wait until the server has received a cancel request."""


def _look(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> State:
    """The state of a connection. Outside autocommit psycopg itself begins a transaction with the first statement."""
    pgconn = connection.pgconn
    status = pgconn.transaction_status
    if connection.closed or status == TransactionStatus.UNKNOWN:
        raise refusals.closed()
    if pgconn.pipeline_status != PipelineStatus.OFF:
        raise UnsupportedConnection(
            "The connection is in pipeline mode: leave it first.", code="conn.pipeline"
        )
    if status == TransactionStatus.INERROR:
        raise refusals.aborted()
    if status == TransactionStatus.ACTIVE:
        raise refusals.busy()
    if status == TransactionStatus.IDLE and connection.autocommit:
        raise refusals.autocommit()
    if connection.info.encoding != "utf-8":
        raise refusals.wrong_encoding()
    return State(database=connection.info.dbname)


async def _look_async(connection: psycopg.AsyncConnection[Any]) -> State:
    return _look(connection)


def _run(connection: psycopg.Connection[Any], batch: Batch) -> list[Rows]:
    # We make our own cursor, which is independent of the connection's cursor_factory, row_factory and adapters.
    cursors = [psycopg.Cursor(connection, row_factory=tuple_row) for _ in batch]
    with connection.pipeline():
        for cursor, (sql, params) in zip(cursors, batch, strict=True):
            _adapt(cursor)
            cursor.execute(sql.encode(), params, prepare=False, binary=True)
    return [cursor.fetchall() if cursor.description else [] for cursor in cursors]


async def _run_async(connection: psycopg.AsyncConnection[Any], batch: Batch) -> list[Rows]:
    """Run a batch. If the caller is cancelled, ask the server to cancel the statement, and wait for the batch to end.

    psycopg cannot leave a pipeline that was cancelled halfway.
    """
    work = asyncio.create_task(_run_pipeline(connection, batch))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        with suppress(psycopg.Error):
            await connection.cancel_safe(timeout=_CANCEL)
        await asyncio.wait([work])
        if not work.cancelled():
            work.exception()  # otherwise asyncio logs that the exception was never retrieved
        raise


async def _run_pipeline(connection: psycopg.AsyncConnection[Any], batch: Batch) -> list[Rows]:
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
    return explain(error, error.sqlstate, lost=isinstance(error, psycopg.OperationalError))


PSYCOPG: Final = DriverAdapter(POSTGRES, "sync", _look, _run, _translate)
PSYCOPG_ASYNC: Final = DriverAdapter(POSTGRES, "async", _look_async, _run_async, _translate)
