"""Join the transaction of a caller's pg8000 connection."""

from __future__ import annotations

import struct
from collections import defaultdict
from typing import Any, Final

import pg8000.exceptions

from perdure.ops.op import Rows
from perdure.store.borrowed import refusals
from perdure.store.borrowed.join import Batch, BoundStatement, DriverAdapter, State
from perdure.store.borrowed.postgres import POSTGRES, explain
from perdure.store.postgres.adapt import Statement, as_text
from perdure.store.postgres.text_format import READERS


def _look(connection: Any) -> State:
    """The state of a connection. If no transaction is open, we begin one.

    pg8000's cursors would begin a transaction, but we do not use them: their parameter style is a global variable of
    pg8000.
    """
    if connection._sock is None:
        raise refusals.closed()
    status = connection._transaction_status
    if status == b"E":
        raise refusals.aborted()
    if status == b"T":
        return State()
    # A pg8000.native connection lacks this attribute: it commits each statement.
    if getattr(connection, "autocommit", True):
        raise refusals.autocommit()
    return State(begin=True)


_TYPES: Final = defaultdict(lambda: str, READERS)


def _run(connection: Any, batch: Batch) -> list[Rows]:
    theirs, connection.pg_types = connection.pg_types, _TYPES
    try:
        return [_ask(connection, bound) for bound in batch]
    finally:
        connection.pg_types = theirs


def _ask(connection: Any, bound: BoundStatement) -> Rows:
    if not bound.params:
        connection.execute_simple(bound.sql)
        return []
    statement = Statement.parse(bound.sql)
    values = [as_text(bound.params[name]) for name in statement.params]
    found = connection.execute_unnamed(statement.text.decode(), vals=values)
    return [tuple(row) for row in found.rows or ()]


def _translate(error: BaseException) -> BaseException:
    match error:
        case pg8000.exceptions.DatabaseError(args=[{"C": str(sqlstate)}]):
            return explain(error, sqlstate, lost=False)
        case pg8000.exceptions.Error() | OSError() | struct.error():
            return explain(error, None, lost=True)
    return error


PG8000: Final = DriverAdapter(POSTGRES, "sync", _look, _run, _translate)
