"""Join the transaction of a caller's asyncpg connection, from a pool or not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple
from uuid import UUID

import asyncpg

from perdure.errors import InternalError, Invalid, StoreBusy
from perdure.ops.op import Param, Rows
from perdure.store.borrowed import refusals
from perdure.store.borrowed.join import Batch, BoundStatement, DriverAdapter, State
from perdure.store.borrowed.postgres import POSTGRES, explain
from perdure.store.postgres.adapt import as_text
from perdure.store.postgres.text_format import microseconds


async def _look(connection: Any) -> State:
    try:
        if connection.is_closed():
            raise refusals.closed()
        # A failed transaction cannot be recognized here. The server will refuse our first statement.
        if not connection.is_in_transaction():
            raise refusals.autocommit()
    except asyncpg.InterfaceError:  # the connection was returned to its pool
        raise refusals.closed() from None
    return State()


async def _run(connection: Any, batch: Batch) -> list[Rows]:
    return [await _ask(connection, bound) for bound in batch]


async def _ask(connection: Any, bound: BoundStatement) -> Rows:
    if not bound.params:
        await connection.execute(bound.sql)
        return []
    spelled = _spell(bound.sql)
    # This uses the connection's statement cache, unless the caller has switched it off for a pooler.
    return [
        tuple(map(_plain, record))
        for record in await connection.fetch(spelled.text, *spelled.bind(bound.params))
    ]


class _Spelled(NamedTuple):
    """A statement with ``$1`` for the first parameter.

    ``params``: the name of each parameter, and whether it is passed as text, which the statement casts.
    """

    text: str
    params: tuple[tuple[str, bool], ...]

    def bind(self, values: Mapping[str, Param]) -> list[Param]:
        return [as_text(values[name]) if cast else values[name] for name, cast in self.params]


_PLACEHOLDER = re.compile(r"%%|(CAST\()?%\((\w+)\)s")


@lru_cache(maxsize=256)
def _spell(sql: str) -> _Spelled:
    """Convert a statement with ``%(name)s`` parameters.

    ``CAST($1 AS json)`` would make asyncpg pass the value to a caller's codec for json, which would encode it again. So
    a parameter in a CAST is cast to text first.
    """
    params: dict[tuple[str, bool], int] = {}

    def number(found: re.Match[str]) -> str:
        cast, name = bool(found[1]), found[2]
        if name is None:
            return "%"
        place = f"${params.setdefault((name, cast), len(params) + 1)}"
        return f"CAST(CAST({place} AS text)" if cast else place

    return _Spelled(_PLACEHOLDER.sub(number, sql), tuple(params))


def _plain(value: Any) -> Any:
    match value:
        case UUID():
            return str(value)
        case datetime():
            return microseconds(value)
    return value


def _translate(error: BaseException) -> BaseException:
    match error:
        case asyncpg.InvalidCachedStatementError():
            return StoreBusy(
                "perdure's tables were changed meanwhile: run your transaction again.", code="store.contended"
            )
        case asyncpg.InvalidSQLStatementNameError() | asyncpg.DuplicatePreparedStatementError():
            return InternalError(
                "The database lost prepared statements. If there is a pooler, connect with statement_cache_size=0.",
                code="store.unprepared",
            )
        case asyncpg.PostgresError():
            return explain(error, getattr(error, "sqlstate", None), lost=True)
        case asyncpg.DataError() | UnicodeEncodeError():
            return Invalid("The database cannot store a value.", code="store.bad_value")
        case asyncpg.InterfaceError() if "another operation" in str(error):
            return refusals.busy()
        # InternalClientError: the last message before the connection ended was not the one that asyncpg expected.
        case asyncpg.InterfaceError() | asyncpg.InternalClientError() | ConnectionError():
            return explain(error, None, lost=True)
        case TimeoutError():
            return explain(error, "57014", lost=False)
    return error


ASYNCPG: Final = DriverAdapter(POSTGRES, "async", _look, _run, _translate)
