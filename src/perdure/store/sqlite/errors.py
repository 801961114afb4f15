"""Translate SQLite's errors for callers, and wait while the database is locked."""

from __future__ import annotations

import logging
import random
import sqlite3
import time
from collections.abc import Callable
from typing import TypeVar

from perdure.errors import (
    InternalError,
    PerdureError,
    Refused,
    SchemaMissing,
    SchemaOutdated,
    StoreAway,
    StoreBusy,
    StoreFull,
    StoreReadOnly,
    UnsupportedDatabase,
)

T = TypeVar("T")

MOVED = (
    "The jobs of this database were moved to another one, or are being moved: run perdure check for details."
)
"""The message of the triggers of a move, see move/sqlite.py."""

_FIRST_PAUSE = 0.0005
_LONGEST_PAUSE = 0.01

_log = logging.getLogger("perdure.store")

# The keys are beginnings of error names. The first match counts.
_MEANINGS: tuple[tuple[str, Callable[[], PerdureError]], ...] = (
    ("SQLITE_BUSY", StoreBusy),
    ("SQLITE_LOCKED", StoreBusy),
    ("SQLITE_PROTOCOL", StoreBusy),
    ("SQLITE_READONLY_DBMOVED", lambda: StoreAway("The SQLite file was moved or deleted while it was open.")),
    ("SQLITE_READONLY", StoreReadOnly),
    ("SQLITE_FULL", StoreFull),
    # A failed disk may be mounted again later. So a worker keeps trying, while a caller gets the error.
    ("SQLITE_IOERR", lambda: StoreAway("The SQLite file could not be read or written.")),
    ("SQLITE_CANTOPEN", lambda: StoreAway("The SQLite file cannot be opened.")),
    ("SQLITE_PERM", lambda: StoreAway("The SQLite file cannot be opened.")),
    ("SQLITE_NOTADB", lambda: UnsupportedDatabase("The file is not an SQLite database.")),
    ("SQLITE_CORRUPT", lambda: UnsupportedDatabase("The SQLite database is damaged.")),
    # A user's trigger called RAISE(ABORT). This does not mean that the row is wrong. Triggers of a move, see ``MOVED``,
    # are recognized before.
    ("SQLITE_CONSTRAINT_TRIGGER", lambda: InternalError("A trigger refused a row.", code="store.refused")),
    ("SQLITE_CONSTRAINT", lambda: InternalError("The schema refused a row.", code="store.constraint")),
    ("SQLITE_TOOBIG", lambda: InternalError("A value in the row is too large.", code="store.too_large")),
    ("SQLITE_SCHEMA", SchemaMissing),
)


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another connection holds the lock, so that the same statement may succeed soon."""
    return _name(error).startswith(("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL"))


def is_undecodable(error: Exception) -> bool:
    """Whether a text in a row is not UTF-8. The sqlite3 module has neither a class nor an error name for this error."""
    return isinstance(error, sqlite3.OperationalError) and str(error).startswith("Could not decode to UTF-8")


def translate(error: Exception) -> Exception:
    """Translate SQLite's error to our error, whose message quotes no values. Any other error is returned unchanged."""
    if not isinstance(error, sqlite3.Error):
        return error
    return _meaning(error).noting(error)


def _meaning(error: sqlite3.Error) -> PerdureError:
    name = _name(error)
    _log.debug("SQLite returned the error %s", name)
    if str(error) == MOVED:
        return Refused(MOVED, code="store.moved")
    if is_undecodable(error):
        return InternalError("A text in the row is not UTF-8.", code="store.undecodable")
    for beginning, meaning in _MEANINGS:
        if name.startswith(beginning):
            return meaning()
    if str(error).startswith("no such table"):
        return SchemaMissing()
    if str(error).startswith("no such column") or " has no column named " in str(error):
        return SchemaOutdated()
    return InternalError("SQLite refused a statement.", code="store.refused")


def patiently(action: Callable[[], T], *, until: float, rest: Callable[[float], object] = time.sleep) -> T:
    """Repeat ``action`` while another connection holds the lock, at most until the time ``until``.

    The pauses are random; otherwise two processes would try at the same times and block each other.
    """
    pause = _FIRST_PAUSE
    while True:
        try:
            return action()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() >= until:
                raise
        rest(pause * random.uniform(0.5, 1.5))
        pause = min(pause * 2, _LONGEST_PAUSE)


def _name(error: sqlite3.Error) -> str:
    # Errors of the sqlite3 module itself, such as a missing parameter, have no SQLite error name.
    return getattr(error, "sqlite_errorname", type(error).__name__)
