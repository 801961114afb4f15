"""A PostgreSQL database as migrations see it: one transaction on a connection of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg

from perdure.ops.op import Param, Row
from perdure.store.postgres_connect import connect
from perdure.store.statements import Dialect

# For our turn to migrate; migrate.apply has less patience with the locks of tables.
_TIMEOUTS: Mapping[str, int] = {"statement_timeout": 3600, "lock_timeout": 600}

# Quoted names and texts stay as they are, but for percent signs, which psycopg reads even there.
_TOKEN = re.compile(r"""(?P<literal>"(?:[^"]|"")*"|'(?:[^']|'')*'|%)|(?<![:\w]):(?P<param>[a-z_]+)""")


class PostgresTarget:
    """A connection, inside a transaction, as migrations see it."""

    dialect: Dialect = "postgres"

    def __init__(self, connection: psycopg.Connection[Any], schema: str) -> None:
        self._connection = connection
        self.schema = schema

    def script(self, sql: str) -> None:
        self._connection.execute(sql.encode())

    def rows(self, sql: str, params: Mapping[str, Param] = {}) -> list[Row]:
        return self._connection.execute(_spell(sql).encode(), params).fetchall()


@contextmanager
def target(url: str, schema: str, *, read_only: bool = False) -> Iterator[PostgresTarget]:
    """Committed if the block succeeds. READ COMMITTED sees what whoever had the lock before us has done."""
    mode = "READ ONLY" if read_only else "READ WRITE"
    with connect(url) as connection:
        connection.execute(f"BEGIN ISOLATION LEVEL READ COMMITTED {mode}".encode())
        for setting, seconds in _TIMEOUTS.items():
            connection.execute("SELECT pg_catalog.set_config(%s, %s, true)", [setting, f"{seconds}s"])
        yield PostgresTarget(connection, schema)


def _spell(sql: str) -> str:
    """``:name`` as psycopg takes it."""
    return _TOKEN.sub(
        lambda token: f"%({token['param']})s" if token["param"] else token["literal"].replace("%", "%%"), sql
    )
