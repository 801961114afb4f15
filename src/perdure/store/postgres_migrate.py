"""A PostgreSQL database as migrations see it: one transaction on a connection of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import psycopg

from ..ops.op import Param, Row
from .postgres_session import open_connection
from .statements import Dialect

# Timeouts of the transaction; migrate.apply sets a shorter one for the locks of tables.
_STATEMENT_SECONDS: Final = 3600
_TURN_SECONDS: Final = 600

# Quoted names and texts stay as they are, but for percent signs, which psycopg reads even there.
_TOKEN = re.compile(r"""(?P<literal>"(?:[^"]|"")*"|'(?:[^']|'')*'|%)|(?<![:\w]):(?P<param>[a-z_]+)""")


class PostgresTarget:
    """A connection, inside a transaction, as migrations see it."""

    dialect: Final[Dialect] = "postgres"

    def __init__(self, connection: psycopg.Connection[Any], schema: str) -> None:
        self._connection = connection
        self.schema = schema

    def script(self, sql: str) -> None:
        self._connection.execute(sql.encode())

    def rows(self, sql: str, params: Mapping[str, Param] = {}) -> list[Row]:  # noqa: B006 never changed
        return self._connection.execute(_spell(sql).encode(), params).fetchall()


@contextmanager
def target(url: str, schema: str, *, read_only: bool = False) -> Iterator[PostgresTarget]:
    """Committed if the block succeeds. READ COMMITTED, to see what whoever had the lock before us has done."""
    with open_connection(url) as connection:
        connection.execute(f"BEGIN ISOLATION LEVEL READ COMMITTED READ {'ONLY' if read_only else 'WRITE'}".encode())
        connection.execute(
            "SELECT pg_catalog.set_config('statement_timeout', %s, true), pg_catalog.set_config('lock_timeout', %s, true)",
            [f"{_STATEMENT_SECONDS}s", f"{_TURN_SECONDS}s"],
        )
        yield PostgresTarget(connection, schema)


def _spell(sql: str) -> str:
    """``:name`` as psycopg takes it."""
    return _TOKEN.sub(
        lambda token: f"%({token['param']})s" if token["param"] else token["literal"].replace("%", "%%"), sql
    )
