"""What PostgreSQL's errors mean to a caller of perdure, and which of them pass by themselves.

Messages are fixed sentences: those of the driver quote values, statements and addresses.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Final, NamedTuple

import psycopg

from perdure.errors import (
    InternalError,
    Invalid,
    PerdureError,
    Refused,
    RowsHeld,
    SchemaMissing,
    SchemaOutdated,
    StoreAway,
    StoreBusy,
    StoreFull,
    StoreReadOnly,
)

MOVED: Final = "PDMVD"
"""The SQLSTATE of triggers that a move has made, see move_postgres.py."""


class Cure(Enum):
    """What helps."""

    NONE = auto()
    LOOK_AGAIN = auto()  # somebody else wrote the row first: an operation that looks again will find it
    WAIT = auto()  # somebody holds a row: an urgent operation goes around it, any other waits
    AGAIN = auto()  # two were in each other's way: one after the other they are not
    AFRESH = auto()  # what this connection has prepared no longer fits: another connection
    RECONNECT = auto()  # the database is away: another connection, when there is one


class Diagnosis(NamedTuple):
    """An error of the driver, understood. ``error`` is what the caller gets if no cure works."""

    cure: Cure
    sqlstate: str
    error: PerdureError


def diagnose(error: psycopg.Error) -> Diagnosis:
    sqlstate = error.sqlstate or _sqlstate_of_refusal(error)
    return understand(sqlstate, error, lost=isinstance(error, psycopg.OperationalError))


def understand(sqlstate: str, error: BaseException, *, lost: bool) -> Diagnosis:
    """The same for any driver's error. ``lost``: without a code, it tells that the connection is gone."""
    cure, meaning = _meaning(sqlstate, lost=lost)
    _log.debug("PostgreSQL answered %s", sqlstate or type(error).__name__)
    return Diagnosis(cure, sqlstate, meaning())


_log = logging.getLogger("perdure.store")

_Make = Callable[[], PerdureError]
_Meaning = tuple[Cure, _Make]


def _says(error: type[PerdureError], message: str = "", *, code: str | None = None) -> _Make:
    return lambda: error(message, code=code)


_REFUSED = _says(StoreAway, "The database refused the login: user, password or access rules do not fit.")
_MIGRATE = "perdure's tables do not exist in this database; call app.migrate() or run perdure migrate."
_CONTENDED = "Others kept changing the same rows; try again."
_TOO_SLOW = "The database took too long for a statement."
_FORBIDDEN = "The database role lacks rights on perdure's tables."
_BAD_VALUE = "A value does not fit into the database."
_UNSUPPORTED = "The database does not support a statement of perdure's."
_MOVED = "The jobs of this database were moved to another one, or are being moved: perdure check tells more."
_UNPREPARED = "The database lost prepared statements: behind a pooler, use prepare=False."

# The whole code, or else its class, the first two letters.
_MEANINGS: Mapping[str, _Meaning] = {
    "40001": (Cure.AGAIN, _says(StoreBusy, _CONTENDED)),
    "40P01": (Cure.AGAIN, _says(StoreBusy, _CONTENDED)),
    "23505": (Cure.LOOK_AGAIN, _says(InternalError, "The schema refused a row.", code="store.constraint")),
    "23": (Cure.NONE, _says(InternalError, "The schema refused a row.", code="store.constraint")),
    MOVED: (Cure.NONE, _says(Refused, _MOVED, code="store.moved")),
    "26000": (Cure.AFRESH, _says(InternalError, _UNPREPARED, code="store.unprepared")),
    "42P05": (Cure.AFRESH, _says(InternalError, _UNPREPARED, code="store.unprepared")),
    # "Cached plan must not change result type": somebody migrated the schema under us.
    "0A000": (Cure.AFRESH, _says(InternalError, _UNSUPPORTED, code="store.refused")),
    "55P03": (Cure.WAIT, RowsHeld),
    "57014": (Cure.NONE, _says(StoreBusy, _TOO_SLOW)),
    "25006": (Cure.RECONNECT, StoreReadOnly),
    "25P03": (Cure.RECONNECT, StoreAway),
    "08": (Cure.RECONNECT, StoreAway),
    "57P04": (Cure.NONE, _says(StoreAway, "The database was dropped.")),
    "57": (Cure.RECONNECT, StoreAway),
    "53300": (Cure.RECONNECT, _says(StoreAway, "The database has no connection left for us.")),
    "53100": (Cure.NONE, StoreFull),
    "53": (Cure.RECONNECT, StoreAway),
    "58": (Cure.RECONNECT, StoreAway),
    "28": (Cure.NONE, _REFUSED),
    "3D000": (Cure.NONE, _says(StoreAway, "The server has no database of this name.")),
    "3F000": (Cure.NONE, _says(SchemaMissing, _MIGRATE)),
    "42P01": (Cure.NONE, _says(SchemaMissing, _MIGRATE)),
    "42703": (Cure.NONE, _says(SchemaOutdated)),
    "42501": (Cure.NONE, _says(StoreReadOnly, _FORBIDDEN, code="store.forbidden")),
    "22": (Cure.NONE, _says(Invalid, _BAD_VALUE, code="store.bad_value")),
    "54": (Cure.NONE, _says(Invalid, _BAD_VALUE, code="store.bad_value")),
}

# libpq gives no SQLSTATE for a login that failed, only the server's sentence. One in another language is not
# known here: the caller's patience runs out first.
_REFUSALS: Mapping[str, re.Pattern[str]] = {
    "28000": re.compile(
        r"authentication failed|no pg_hba\.conf entry|no password supplied|role .* does not exist"
    ),
    "3D000": re.compile(r"database .* does not exist"),
    "53300": re.compile(r"too many (connections|clients)|remaining connection slots"),
}


def _sqlstate_of_refusal(error: psycopg.Error) -> str:
    return next((state for state, pattern in _REFUSALS.items() if pattern.search(str(error))), "")


def _meaning(sqlstate: str, *, lost: bool) -> _Meaning:
    if not sqlstate and lost:
        return Cure.RECONNECT, StoreAway
    sentence = f"PostgreSQL refused a statement ({sqlstate or 'no code'})."
    refused = _says(InternalError, sentence, code="store.refused")
    return _MEANINGS.get(sqlstate) or _MEANINGS.get(sqlstate[:2]) or (Cure.NONE, refused)
