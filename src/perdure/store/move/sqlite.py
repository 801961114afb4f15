"""An SQLite file as one side of a move."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Final

from perdure.ops.op import Param, Row, Rows
from perdure.store.move.side import PAGE, SEALED, Table, misfit
from perdure.store.sqlite.checkpoint import Checkpoints
from perdure.store.sqlite.connect import Database
from perdure.store.sqlite.errors import MOVED, patiently, translate
from perdure.store.sqlite.migrate import SqliteTarget
from perdure.store.statements import name_tables, render

_ACTS: Final = ("INSERT", "UPDATE", "DELETE")


@contextmanager
def sqlite_side(path: str, *, patience: float) -> Iterator[SqliteSide]:
    database = Database(path)
    try:
        connection = patiently(lambda: database.open(create=False), until=time.monotonic() + patience)
        side = SqliteSide(database, connection, patience=patience)
        try:
            yield side
        finally:
            side.checkpoints.close()
            database.close(connection)
    except sqlite3.Error as error:
        raise translate(error) from None


class SqliteSide(SqliteTarget):
    """A side with one connection, which reads and writes."""

    misfits: tuple[type[Exception], ...] = (sqlite3.IntegrityError, sqlite3.DataError, OverflowError)

    def __init__(self, database: Database, connection: sqlite3.Connection, *, patience: float) -> None:
        super().__init__(connection)
        self.address = f"sqlite:///{database.path}"
        self.checkpoints = Checkpoints(database)
        self._patience = patience

    def ask(self, text: str, **params: Param) -> Rows:
        now = time.time_ns() // 1000
        return self._connection.execute(render(text, "sqlite"), {**params, "now": now}).fetchall()

    def table(self, name: str) -> Table:
        found = self.rows(f"SELECT name, pk FROM pragma_table_info('perdure_{name}') ORDER BY name")
        key = sorted((place, column) for column, place in found if place)
        return Table(name, tuple(column for column, _ in found), tuple(column for _, column in key))

    def stream(self, table: Table, after: Sequence[Param] = ()) -> Generator[list[Row], None, None]:
        cursor = self._select(table, table.columns, after)
        while page := self._fetch(cursor, table, after):
            yield page
            after = table.key_of(page[-1])

    def _fetch(self, cursor: sqlite3.Cursor, table: Table, after: Sequence[Param]) -> list[Row]:
        try:
            return cursor.fetchmany(PAGE)
        except sqlite3.OperationalError as error:
            if not str(error).startswith("Could not decode"):
                raise
        # A text in this page is not UTF-8. Find the first such row, to name it in the error.
        good, cursor = 0, self._select(table, table.columns, after)
        with suppress(sqlite3.OperationalError):
            while cursor.fetchone():
                good += 1
        (shown,) = islice(self._select(table, table.shown, after), good, good + 1)
        raise misfit(table, shown, "any other database")

    def _select(self, table: Table, columns: Sequence[str], after: Sequence[Param]) -> sqlite3.Cursor:
        key = ", ".join(table.key)
        behind = f"WHERE ({key}) > ({', '.join('?' * len(table.key))})" if after else ""
        sql = f"SELECT {', '.join(columns)} FROM perdure.{table.name} {behind} ORDER BY {key}"
        return self._connection.execute(name_tables(sql, "sqlite"), tuple(after))

    def seal(self) -> None:
        for table in SEALED:
            for act in _ACTS:
                self.run(_seal(table, act))

    def unseal(self) -> None:
        for table in SEALED:
            for act in _ACTS:
                self.run(_unseal(table, act))

    @contextmanager
    def writing(self, table: Table) -> Iterator[None]:
        with self.exclusive_transaction():
            # This is inside a transaction, so other connections never see the table without its seal.
            self.run(_unseal(table.name, "INSERT"))
            yield
            self.run(_seal(table.name, "INSERT"))

    def insert(self, table: Table, rows: Sequence[Row]) -> None:
        sql = (
            f"INSERT INTO perdure.{table.name} ({', '.join(table.columns)})"
            f" VALUES ({', '.join('?' * len(table.columns))})"
        )
        self._connection.executemany(name_tables(sql, "sqlite"), rows)

    def last_number(self, table: Table) -> int | None:
        for (last,) in self.rows("SELECT seq FROM sqlite_sequence WHERE name = :name", _name(table)):
            return int(last)
        return None

    def count_on(self, table: Table, last: int) -> None:
        self.rows("DELETE FROM sqlite_sequence WHERE name = :name", _name(table))
        self.rows(
            "INSERT INTO sqlite_sequence (name, seq) VALUES (:name, :last)", {**_name(table), "last": last}
        )

    @contextmanager
    def exclusive_transaction(self) -> Iterator[None]:
        with super().exclusive_transaction():
            yield
        self.checkpoints.after_commit(self._connection)

    def _begin(self, begin: str) -> None:
        patiently(lambda: self._connection.execute(begin), until=time.monotonic() + self._patience)


def _seal(table: str, act: str) -> str:
    return (
        f"CREATE TRIGGER perdure.seal_{table}_{act.lower()} BEFORE {act} ON perdure.{table}"
        f" BEGIN SELECT RAISE(ABORT, '{MOVED}'); END"
    )


def _unseal(table: str, act: str) -> str:
    return f"DROP TRIGGER IF EXISTS perdure.seal_{table}_{act.lower()}"


def _name(table: Table) -> dict[str, Param]:
    return {"name": f"perdure_{table.name}"}
