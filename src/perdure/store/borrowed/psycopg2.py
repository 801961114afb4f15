"""Join the transaction of a caller's psycopg2 connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import psycopg2
from psycopg2 import extensions

from perdure.errors import UnsupportedConnection
from perdure.ops.op import Param, Rows
from perdure.store.borrowed import refusals
from perdure.store.borrowed.join import Batch, DriverAdapter, State
from perdure.store.borrowed.postgres import POSTGRES, explain
from perdure.store.postgres.adapt import as_text
from perdure.store.postgres.text_format import READERS


def _look(connection: Any) -> State:
    """The state of a connection. Outside autocommit psycopg2 itself begins a transaction with the first statement."""
    if connection.async_:
        raise UnsupportedConnection("perdure cannot join the transaction of an async psycopg2 connection.")
    if connection.closed:
        raise refusals.closed()
    status = connection.get_transaction_status()
    if status == extensions.TRANSACTION_STATUS_INERROR:
        raise refusals.aborted()
    if status == extensions.TRANSACTION_STATUS_ACTIVE:
        raise refusals.busy()
    if status == extensions.TRANSACTION_STATUS_IDLE and connection.autocommit:
        raise refusals.autocommit()
    if connection.encoding != "UTF8":
        raise refusals.wrong_encoding()
    return State(database=connection.info.dbname)


def _run(connection: Any, batch: Batch) -> list[Rows]:
    answers: list[Rows] = []
    # We make our own cursor, which is independent of the connection's cursor_factory and registered types.
    with connection.cursor(cursor_factory=extensions.cursor) as cursor:
        for reader in _READERS:
            extensions.register_type(reader, cursor)
        for sql, params in batch:
            cursor.execute(sql, {name: _quote(value) for name, value in params.items()})
            answers.append(cursor.fetchall() if cursor.description else [])
    return answers


def _quote(value: Param) -> Any:
    """Quote a value as a literal without a type.

    The server infers the type, as it does for the store's own parameters.
    """
    text = as_text(value)
    return None if text is None else extensions.QuotedString(text)


def _reader(read: Callable[[str], Any]) -> Callable[[Any, object], Any]:
    return lambda text, cursor: None if text is None else read(text)


_READERS: Final = [extensions.new_type((oid,), "PERDURE", _reader(read)) for oid, read in READERS.items()]


def _translate(error: BaseException) -> BaseException:
    if not isinstance(error, psycopg2.Error):
        return error
    lost = isinstance(error, psycopg2.OperationalError | psycopg2.InterfaceError)
    return explain(error, error.pgcode, lost=lost)


PSYCOPG2: Final = DriverAdapter(POSTGRES, "sync", _look, _run, _translate)
