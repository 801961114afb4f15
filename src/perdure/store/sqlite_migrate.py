"""Bringing an SQLite file up to date, however many processes start at once."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import suppress

from perdure.errors import SchemaMissing, SchemaOutdated
from perdure.ops.op import Param, Row
from perdure.store import migrate
from perdure.store.statements import DEFAULT_SCHEMA, Dialect


class SqliteTarget:
    """A connection, inside a transaction, as migrations see it."""

    dialect: Dialect = "sqlite"
    schema = DEFAULT_SCHEMA

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def script(self, sql: str) -> None:
        # Not executescript(): it commits.
        for statement in _split(sql):
            self._connection.execute(statement)

    def rows(self, sql: str, params: Mapping[str, Param] = {}) -> list[Row]:
        return self._connection.execute(sql, params).fetchall()


def check_up_to_date(connection: sqlite3.Connection) -> None:
    """Raise what is wrong with the schema. Takes no lock that stops a writer."""
    connection.execute("BEGIN")
    try:
        migrate.check(SqliteTarget(connection))
    finally:
        _roll_back(connection)


def refuse_without_tables(connection: sqlite3.Connection) -> None:
    """Raise SchemaMissing if there are none; tables that are only outdated can be brought up to date."""
    with suppress(SchemaOutdated):
        check_up_to_date(connection)


def bring_up_to_date(connection: sqlite3.Connection) -> list[int]:
    """Apply what is missing, in one transaction; return the versions applied."""
    try:
        check_up_to_date(connection)
    except (SchemaMissing, SchemaOutdated):
        pass
    else:
        return []
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have been quicker: what is missing is read again under the lock.
        applied = migrate.apply(SqliteTarget(connection))
        connection.execute("COMMIT")
    finally:
        _roll_back(connection)
    return applied


def _roll_back(connection: sqlite3.Connection) -> None:
    """Unless it was committed, or SQLite did it by itself."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _split(script: str) -> Iterator[str]:
    """The statements of a script. Not every semicolon ends one: there are strings, comments and triggers."""
    pending = ""
    for piece in re.split(r"(?<=;)", script):
        pending += piece
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""
    if pending.strip():
        yield pending
