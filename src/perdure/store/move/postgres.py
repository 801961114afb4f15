"""A PostgreSQL schema as one side of a move: read with a cursor, written with COPY."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from struct import Struct
from struct import error as OutOfRange
from typing import Any, Final

import psycopg
from psycopg.sql import SQL, Composed, Identifier, Literal

from perdure.model.time_text import FIRST, LAST
from perdure.ops.op import Param, Row, Rows
from perdure.store.move.side import PAGE, SEALED, Table
from perdure.store.postgres.adapt import YEAR_2000, adapt
from perdure.store.postgres.connect import connect
from perdure.store.postgres.errors import MOVED, diagnose
from perdure.store.postgres.migrate import PostgresTarget
from perdure.store.statements import render


@contextmanager
def postgres_side(url: str, schema: str, *, address: str) -> Iterator[PostgresSide]:
    try:
        with connect(url) as connection:
            adapt(connection.adapters)
            yield PostgresSide(url, connection, schema, address=address)
    except psycopg.Error as error:
        raise diagnose(error).error.noting(error) from None


class PostgresSide(PostgresTarget):
    """A side with one connection, which reads and writes."""

    misfits: tuple[type[Exception], ...] = (
        psycopg.DataError,
        psycopg.IntegrityError,
        OutOfRange,
        ValueError,
    )

    def __init__(self, url: str, connection: psycopg.Connection[Any], schema: str, *, address: str) -> None:
        super().__init__(url, connection, schema)
        self.address = address
        self._types: dict[str, dict[str, str]] = {}

    def ask(self, text: str, **params: Param) -> Rows:
        statement = render(text, "postgres", self.schema).encode()
        cursor = self._connection.execute(statement, {**params, "now": None})
        return cursor.fetchall() if cursor.description else []

    def table(self, name: str) -> Table:
        found = self.rows(_COLUMNS, {"schema": self.schema, "table": name})
        self._types[name] = {column: type for column, type, _ in found}
        key = sorted((place, column) for column, _, place in found if place is not None)
        return Table(name, tuple(column for column, _, _ in found), tuple(column for _, column in key))

    def stream(self, table: Table, after: Sequence[Param] = ()) -> Generator[list[Row], None, None]:
        types = self._types[table.name]
        key = SQL(", ").join(_in_order(column, types[column]) for column in table.key)
        behind: SQL | Composed = SQL("")
        if after:
            behind = SQL("WHERE ({}) > ({})").format(key, SQL(", ").join(map(Literal, after)))
        columns = SQL(", ").join(_plain(column, types[column]) for column in table.columns)
        select = SQL("SELECT {} FROM {} {} ORDER BY {}").format(columns, self._place(table), behind, key)
        # This uses a cursor, not COPY: psycopg takes as long for one row of COPY as for a whole page of a cursor.
        with self._connection.cursor("perdure_move", binary=True) as cursor:
            cursor.execute(select)
            while page := cursor.fetchmany(PAGE):
                yield page

    def seal(self) -> None:
        self.run(_REFUSE)
        for table in SEALED:
            # CREATE TRIGGER waits until the current writers of the table have ended.
            self.run(_SEAL.format(table=table))

    def unseal(self) -> None:
        self.run("DROP FUNCTION IF EXISTS perdure.refuse_moved() CASCADE")

    @contextmanager
    def writing(self, table: Table) -> Iterator[None]:
        with self.exclusive_transaction():
            self.rows("SELECT pg_catalog.set_config('perdure_move.writes', 'yes', true)")
            yield

    def insert(self, table: Table, rows: Sequence[Row]) -> None:
        pack = _packer([self._types[table.name][column] for column in table.columns])
        copy_in = SQL("COPY {} ({}) FROM STDIN (FORMAT BINARY)").format(
            self._place(table), SQL(", ").join(map(Identifier, table.columns))
        )
        with self._connection.cursor() as cursor, cursor.copy(copy_in) as copy:
            copy.write(b"".join([_HEAD, *map(pack, rows), _TAIL]))

    def last_number(self, table: Table) -> int | None:
        if sequence := self._sequence(table):
            # The server has quoted the name, so it can be part of a statement.
            ((last, called),) = self._connection.execute(
                f"SELECT last_value, is_called FROM {sequence}".encode()
            )
            return int(last) if called else None
        return None

    def count_on(self, table: Table, last: int) -> None:
        self.rows(
            "SELECT pg_catalog.setval(CAST(:sequence AS regclass), :last)",
            {"sequence": self._sequence(table), "last": last},
        )

    def _place(self, table: Table) -> Identifier:
        return Identifier(self.schema, table.name)

    def _sequence(self, table: Table) -> str | None:
        ((sequence,),) = self.rows(
            "SELECT pg_catalog.pg_get_serial_sequence("
            "pg_catalog.format('%I.%I', CAST(:schema AS text), CAST(:table AS text)), CAST(:column AS text))",
            {"schema": self.schema, "table": table.name, "column": table.key[0]},
        )
        return None if sequence is None else str(sequence)


_COLUMNS: Final = """
SELECT attname, typname, pg_catalog.array_position(indkey::smallint[], attnum)
  FROM pg_catalog.pg_attribute
  JOIN pg_catalog.pg_class ON pg_class.oid = attrelid
  JOIN pg_catalog.pg_namespace ON pg_namespace.oid = relnamespace
  JOIN pg_catalog.pg_type ON pg_type.oid = atttypid
  JOIN pg_catalog.pg_index ON indrelid = attrelid AND indisprimary
 WHERE nspname = CAST(:schema AS text) AND relname = CAST(:table AS text) AND attnum > 0 AND NOT attisdropped
 ORDER BY attname COLLATE "C"
"""

_REFUSE: Final = f"""
CREATE OR REPLACE FUNCTION perdure.refuse_moved() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'The jobs of this database were moved to another one, or are being moved.'
        USING ERRCODE = '{MOVED}';
END $$
"""

# The move sets perdure_move.writes in its own transactions. Other sessions do not see that setting.
_SEAL: Final = """
CREATE TRIGGER sealed BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON perdure.{table}
   FOR EACH STATEMENT
  WHEN (pg_catalog.current_setting('perdure_move.writes', true) IS DISTINCT FROM 'yes')
EXECUTE FUNCTION perdure.refuse_moved()
"""


def _plain(column: str, type: str) -> Composed:
    return SQL("CAST({} AS integer)" if type == "bool" else "{}").format(Identifier(column))


def _in_order(column: str, type: str) -> Composed:
    """Order texts by their bytes, as SQLite does."""
    return SQL('{} COLLATE "C"' if type == "text" else "{}").format(Identifier(column))


_HEAD: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TAIL: Final = b"\xff\xff"
_NULL: Final = b"\xff\xff\xff\xff"


def _packer(types: Sequence[str]) -> Callable[[Row], bytes]:
    """Return a function that packs rows of these types into the format of COPY."""
    packers = [PACKERS[type] for type in types]
    head = Struct("!h").pack(len(packers))

    def pack(row: Row) -> bytes:
        values = zip(packers, row, strict=True)
        return head + b"".join([_NULL if value is None else pack(value) for pack, value in values])

    return pack


def _number(form: str) -> Callable[[int], bytes]:
    packed = Struct(f"!i{form}")
    size = packed.size - 4
    return lambda value: packed.pack(size, value)


def _text(value: str) -> bytes:
    encoded = value.encode()
    return _pack_size(len(encoded)) + encoded


def _uuid(value: str) -> bytes:
    encoded = bytes.fromhex(value.replace("-", ""))
    if len(encoded) != 16:
        raise ValueError(value)
    return _pack_uuid(16, encoded)


def _instant(value: int) -> bytes:
    if not FIRST <= value <= LAST:
        raise ValueError(value)
    return _pack_instant(8, value - YEAR_2000)


_pack_size = Struct("!i").pack
_pack_uuid = Struct("!i16s").pack
_pack_instant = Struct("!iq").pack

PACKERS: Mapping[str, Callable[[Any], bytes]] = {
    "bool": _number("?"),
    "int2": _number("h"),
    "int4": _number("i"),
    "int8": _number("q"),
    "text": _text,
    "json": _text,
    "uuid": _uuid,
    "timestamptz": _instant,
}
"""Packers by the name of a type."""
