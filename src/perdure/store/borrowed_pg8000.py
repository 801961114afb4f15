"""How the transaction of a caller's pg8000 connection is joined."""

from __future__ import annotations

import struct
from collections import defaultdict
from typing import Any, Final

import pg8000.exceptions

from perdure.ops.op import Rows
from perdure.store import borrowed_refusals as refusals
from perdure.store.borrowed import Batch, Flavour, Said, State
from perdure.store.borrowed_postgres import POSTGRES, explain
from perdure.store.postgres_adapt import Statement, as_text
from perdure.store.postgres_text import READERS


def _look(connection: Any) -> State:
    """Its cursors begin a transaction outside autocommit; they are not used here, since they spell parameters in a
    style that is a global of the module's."""
    if connection._sock is None:
        raise refusals.closed()
    status = connection._transaction_status
    if status == b"E":
        raise refusals.aborted()
    if status == b"T":
        return State()
    # A connection of pg8000.native has no such attribute: it commits each statement.
    if getattr(connection, "autocommit", True):
        raise refusals.autocommit()
    return State(begin=True)


_TYPES: Final = defaultdict(lambda: str, READERS)


def _run(connection: Any, batch: Batch) -> list[Rows]:
    theirs, connection.pg_types = connection.pg_types, _TYPES
    try:
        return [_ask(connection, said) for said in batch]
    finally:
        connection.pg_types = theirs


def _ask(connection: Any, said: Said) -> Rows:
    if not said.params:
        connection.execute_simple(said.sql)
        return []
    statement = Statement.parse(said.sql)
    values = [as_text(said.params[name]) for name in statement.params]
    found = connection.execute_unnamed(statement.text.decode(), vals=values)
    return [tuple(row) for row in found.rows or ()]


def _translate(error: BaseException) -> BaseException:
    match error:
        case pg8000.exceptions.DatabaseError(args=[{"C": str(sqlstate)}]):
            return explain(error, sqlstate, lost=False)
        case pg8000.exceptions.Error() | OSError() | struct.error():
            return explain(error, None, lost=True)
    return error


PG8000: Final = Flavour(POSTGRES, "blocking", _look, _run, _translate)
