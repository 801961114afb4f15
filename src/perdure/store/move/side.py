"""One side of a move: the tables that are moved, and the methods that a side must have."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple, Protocol

from perdure.errors import Refused
from perdure.ops.op import Param, Row, Rows
from perdure.store.schema.migrate import Target
from perdure.store.store import Store

MOVED: Final = (
    "task",
    "queue",
    "named_limit",
    "limit_lock",
    "worker",
    "workflow",
    "job",
    "key",
    "dependency",
    "mutation",
    "attempt",
    "event",
    "log",
    "act",
)
"""The tables that are moved, in this order."""

LEFT: Final[Mapping[str, str]] = {
    "leader": "the workers of the new database elect a leader",
    "migration": "each database has its own migrations",
    "move": "it records this move",
}
"""The tables that are not moved, and why."""

SEALED: Final = (*MOVED, "leader")
"""The tables to which only the move may write while it is under way."""

PAGE: Final = 100
"""Rows read at a time. A row may have some megabytes."""


class Table(NamedTuple):
    """A table of one side. Columns are sorted by name, because the two databases may have them in different orders."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]

    def key_of(self, row: Row) -> list[int | str]:
        return self.pick(self.key, row)

    def pick(self, columns: Sequence[str], row: Row) -> list[Any]:
        return [row[self.columns.index(column)] for column in columns]

    @property
    def shown(self) -> tuple[str, ...]:
        """The columns that identify a row in an error. An idempotency key may be secret; the id of its job is not."""
        shown = [column for column in self.key if column != "key"]
        return (*shown, "job") if "job" in self.columns and "job" not in shown else tuple(shown)

    def describe(self, shown: Sequence[object]) -> str:
        """Describe a row by the values of the ``shown`` columns."""
        return ", ".join(f"{column} {value}" for column, value in zip(self.shown, shown, strict=True))


class Side(Target, Protocol):
    """A database as one side of a move.

    Rows are the same on every side: times, durations and booleans are integers, ids and JSON are texts.
    """

    @property
    def address(self) -> str: ...

    @property
    def misfits(self) -> tuple[type[Exception], ...]:
        """The errors that ``insert`` raises if a row cannot be stored here."""
        ...

    def ask(self, text: str, **params: Param) -> Rows:
        """Run a statement in the notation of sql/shared.sql."""
        ...

    def table(self, name: str) -> Table: ...

    def stream(self, table: Table, after: Sequence[Param] = ()) -> Generator[list[Row], None, None]:
        """Yield pages of rows, in the order of their keys, from the first row after the key ``after``.

        The order is the same on every side.
        """
        ...

    def seal(self) -> None:
        """Wait for the current writers to end, then refuse all writes but those of the move.

        Called in an exclusive transaction.
        """
        ...

    def unseal(self) -> None: ...

    def writing(self, table: Table) -> AbstractContextManager[None]:
        """An exclusive transaction in which ``insert`` passes the seal of this table."""
        ...

    def insert(self, table: Table, rows: Sequence[Row]) -> None: ...

    def last_number(self, table: Table) -> int | None:
        """The last generated number, if the rows of this table are numbered."""
        ...

    def count_on(self, table: Table, last: int) -> None:
        """Make the next generated number greater than ``last``. Called in an exclusive transaction."""
        ...


def open_side(store: Store, url: str, schema: str, *, patience: float) -> AbstractContextManager[Side]:
    """Open the database of a store as one side of a move. ``patience``: seconds to wait for locks, only on SQLite."""
    if store.dialect == "sqlite":
        from perdure.store.move.sqlite import sqlite_side

        return sqlite_side(url.removeprefix("sqlite:///"), patience=patience)
    from perdure.store.move.postgres import postgres_side

    return postgres_side(url, schema, address=store.address)


def misfit(table: Table, shown: Sequence[object], address: str) -> Refused:
    """The error for a row that cannot be stored.

    Another program has written the row: rows that perdure writes can be stored on every side.
    """
    return Refused(
        f"A row of {table.name} ({table.describe(shown)}) cannot be stored in {address}; repair or delete it. "
        "Until then perdure move --abandon opens the old database again.",
        code="move.misfit",
    )
