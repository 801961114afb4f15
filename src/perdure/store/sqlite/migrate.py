"""The SQLite target of migrations. If several processes migrate at once, SQLite's write lock lets in one at a time."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from perdure.errors import SchemaOutdated
from perdure.ops.op import Param, Row
from perdure.store.schema import migrate
from perdure.store.schema.files import Migration
from perdure.store.statements import DEFAULT_SCHEMA, Dialect, name_tables


class SqliteTarget:
    """An SQLite database to migrate."""

    dialect: Dialect = "sqlite"
    schema = DEFAULT_SCHEMA

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    @contextmanager
    def look(self) -> Iterator[None]:
        with self._transaction("BEGIN"):
            yield

    @contextmanager
    def exclusive_transaction(self) -> Iterator[None]:
        # The write lock makes the transaction exclusive, and ends with the process. Other processes may write between
        # two such transactions.
        with self._transaction("BEGIN IMMEDIATE"):
            yield

    def make_room(self) -> None:
        pass

    def run(self, statement: str) -> None:
        self._connection.execute(name_tables(statement, "sqlite"))

    def run_online(self, statement: str) -> None:
        # Every SQLite statement may run in a transaction.
        self.run(statement)

    def rows(self, sql: str, params: Mapping[str, Param] = {}) -> list[Row]:
        return self._connection.execute(name_tables(sql, "sqlite"), params).fetchall()

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[None]:
        self._begin(begin)
        try:
            yield
            self._connection.execute("COMMIT")
        finally:
            # Roll back, unless the transaction was committed or SQLite has rolled it back by itself. Raise the block's
            # error, not an error of the rollback.
            with suppress(sqlite3.Error):
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    def _begin(self, begin: str) -> None:
        self._connection.execute(begin)


def refuse_without_tables(connection: sqlite3.Connection, known: Sequence[Migration]) -> None:
    """Raise SchemaMissing if there are no tables. Outdated tables are accepted: they can be migrated."""
    with suppress(SchemaOutdated):
        migrate.check(SqliteTarget(connection), known)
