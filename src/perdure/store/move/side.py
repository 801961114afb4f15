"""A database at one end of a move: which of its tables go along, and what the mover asks of it."""

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
"""In this order."""

LEFT: Final[Mapping[str, str]] = {
    "leader": "the workers of the new database elect one",
    "migration": "each database has had its own",
    "move": "it records this move",
}
"""What stays where it is, and why."""

SEALED: Final = (*MOVED, "leader")
"""Where nobody else may write."""

PAGE: Final = 100
"""Rows that are read at a time. A row may have some megabytes."""


class Table(NamedTuple):
    """A table as its database describes it. Columns are ordered by name: the order of their creation may differ."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]

    def key_of(self, row: Row) -> list[int | str]:
        return self.pick(self.key, row)

    def pick(self, columns: Sequence[str], row: Row) -> list[Any]:
        return [row[self.columns.index(column)] for column in columns]

    @property
    def shown(self) -> tuple[str, ...]:
        """What names a row in an error. An idempotency key may be a secret; its job is not."""
        shown = [column for column in self.key if column != "key"]
        return (*shown, "job") if "job" in self.columns and "job" not in shown else tuple(shown)

    def told(self, shown: Sequence[object]) -> str:
        """A row, by the values of those columns."""
        return ", ".join(f"{column} {value}" for column, value in zip(self.shown, shown, strict=True))


class Side(Target, Protocol):
    """Rows are the same values on every side: integers for times, spans and truth, texts for ids and JSON."""

    @property
    def address(self) -> str: ...

    @property
    def misfits(self) -> tuple[type[Exception], ...]:
        """How ``insert`` fails if a row cannot be stored here."""
        ...

    def ask(self, text: str, **params: Param) -> Rows:
        """Run a statement that is spelled as in sql/shared.sql."""
        ...

    def table(self, name: str) -> Table: ...

    def stream(self, table: Table, after: Sequence[Param] = ()) -> Generator[list[Row], None, None]:
        """The rows behind this key, a page at a time, in the order of their keys, which is the same on every side."""
        ...

    def seal(self) -> None:
        """Refuse what others write, once the current writers have ended; in an exclusive transaction."""
        ...

    def unseal(self) -> None: ...

    def writing(self, table: Table) -> AbstractContextManager[None]:
        """An exclusive transaction in which ``insert`` passes the seal of this table."""
        ...

    def insert(self, table: Table, rows: Sequence[Row]) -> None: ...

    def last_number(self, table: Table) -> int | None:
        """The last one that was given to a row, if the rows of this table are numbered."""
        ...

    def count_on(self, table: Table, last: int) -> None:
        """Give the next row a higher number than this, in an exclusive transaction."""
        ...


def open_side(store: Store, url: str, schema: str, *, patience: float) -> AbstractContextManager[Side]:
    """The database of a store as one end of a move; on SQLite others' locks are waited for, so many seconds."""
    if store.dialect == "sqlite":
        from perdure.store.move.sqlite import sqlite_side

        return sqlite_side(url.removeprefix("sqlite:///"), patience=patience)
    from perdure.store.move.postgres import postgres_side

    return postgres_side(url, schema, address=store.address)


def misfit(table: Table, shown: Sequence[object], address: str) -> Refused:
    """A row that others have written, for what we write fits everywhere."""
    return Refused(
        f"A row of {table.name} ({table.told(shown)}) cannot be stored in {address}; mend or delete it. "
        "Until then perdure move --abandon opens the old database again.",
        code="move.misfit",
    )
