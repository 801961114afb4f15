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
    InvalidConfig,
    PerdureError,
    Refused,
    RowsLocked,
    SchemaMissing,
    SchemaOutdated,
    StoreAway,
    StoreBusy,
    StoreFull,
    StoreReadOnly,
)

FORBIDDEN: Final = "42501"

MOVED: Final = "PDMVD"
"""The SQLSTATE of triggers that a move has made, see move/postgres.py."""

REFUSED_SETTINGS: Final = "PDSET"
"""Stands for the many codes of a server that does not begin a session with the settings asked for: they are the
same that a statement may get for other reasons."""


class Cure(Enum):
    """What helps."""

    NONE = auto()
    LOOK_AGAIN = auto()  # somebody else wrote the row first: an operation that looks again will find it
    WAIT = auto()  # a row is locked: an urgent operation gives up, any other waits
    AGAIN = auto()  # two were in each other's way: one after the other they are not
    AFRESH = auto()  # what this connection has prepared no longer fits: another connection
    RECONNECT = auto()  # the database is away: another connection, when there is one


class Diagnosis(NamedTuple):
    """An error of the driver, understood. ``error`` is what the caller gets if no cure works."""

    cure: Cure
    sqlstate: str
    error: PerdureError

    @property
    def reason(self) -> str:
        """For the log, in a few words."""
        if self.sqlstate or str(self.error) == str(StoreAway()):
            return self.sqlstate or "connection lost"
        said = str(self.error).rstrip(".")
        return said[:1].lower() + said[1:]


def translate(error: Exception) -> Exception:
    """Ours for the driver's; any other is returned as it is."""
    return diagnose(error).error if isinstance(error, psycopg.Error) else error


def diagnose(error: psycopg.Error) -> Diagnosis:
    sqlstate = error.sqlstate or _sqlstate_of_refusal(error)
    if not sqlstate and (misfit := _misfit(error)):
        return Diagnosis(Cure.RECONNECT, "", StoreAway(misfit))
    return understand(sqlstate, error, lost=isinstance(error, psycopg.OperationalError))


def understand(sqlstate: str, error: BaseException, *, lost: bool) -> Diagnosis:
    """The same for any driver's error. ``lost``: without a code, the error means that the connection is gone."""
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
_NOT_NOW = "The database is not in a state in which it can run a statement of perdure's."
_FORBIDDEN = "The database role lacks rights on perdure's tables: perdure grants prints those that it needs."
_BAD_VALUE = "A value does not fit into the database."
_LIMIT = "A limit of the database was exceeded."
_UNSUPPORTED = "The database does not support a statement of perdure's."
_MOVED = "The jobs of this database were moved to another one, or are being moved: perdure check tells more."
_UNPREPARED = "The database lost prepared statements: behind a pooler, use prepare=False."
_SETTINGS = (
    "The server refuses settings that are asked for: see options and replication in the URL, and $PGOPTIONS."
)

# The whole code, or else its class, the first two letters.
_MEANINGS: Mapping[str, _Meaning] = {
    "40001": (Cure.AGAIN, _says(StoreBusy, _CONTENDED)),
    "40P01": (Cure.AGAIN, _says(StoreBusy, _CONTENDED)),
    "40": (Cure.AGAIN, _says(StoreBusy, _CONTENDED)),
    "23505": (Cure.LOOK_AGAIN, _says(InternalError, "The schema refused a row.", code="store.constraint")),
    "23": (Cure.NONE, _says(InternalError, "The schema refused a row.", code="store.constraint")),
    MOVED: (Cure.NONE, _says(Refused, _MOVED, code="store.moved")),
    REFUSED_SETTINGS: (Cure.NONE, _says(InvalidConfig, _SETTINGS)),
    "26000": (Cure.AFRESH, _says(InternalError, _UNPREPARED, code="store.unprepared")),
    "42P05": (Cure.AFRESH, _says(InternalError, _UNPREPARED, code="store.unprepared")),
    # "Cached plan must not change result type": somebody migrated the schema under us.
    "0A000": (Cure.AFRESH, _says(InternalError, _UNSUPPORTED, code="store.refused")),
    "55P03": (Cure.WAIT, RowsLocked),
    "55": (Cure.NONE, _says(StoreBusy, _NOT_NOW)),
    "57014": (Cure.NONE, _says(StoreBusy, _TOO_SLOW)),
    "25006": (Cure.RECONNECT, StoreReadOnly),
    "25P03": (Cure.RECONNECT, StoreAway),
    # transaction_timeout: the server has closed the connection.
    "25P04": (Cure.RECONNECT, _says(StoreBusy, _TOO_SLOW)),
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
    FORBIDDEN: (Cure.NONE, _says(StoreReadOnly, _FORBIDDEN, code="store.forbidden")),
    "22": (Cure.NONE, _says(Invalid, _BAD_VALUE, code="store.bad_value")),
    # A value that is nested too deeply. The limits of the other codes need not be exceeded by a value.
    "54001": (Cure.NONE, _says(Invalid, _BAD_VALUE, code="store.bad_value")),
    "54": (Cure.NONE, _says(Invalid, _LIMIT, code="store.limit")),
}

# libpq gives no SQLSTATE for a login that failed, only the server's sentence. One in another language is not
# known here: the caller's patience runs out first.
_REFUSALS: Mapping[str, re.Pattern[str]] = {
    "28000": re.compile(
        r"authentication failed|no pg_hba\.conf entry|no password supplied|role .* does not exist"
    ),
    "3D000": re.compile(r"database .* does not exist"),
    "53300": re.compile(r"too many (connections|clients)|remaining connection slots"),
    REFUSED_SETTINGS: re.compile(
        r"(unrecognized configuration|unsupported startup|permission denied to set|invalid value for) parameter"
        r"|invalid command-line argument|parameter \S+ (requires|cannot be)|-\S.* requires a value"
    ),
}

# Nor for a server that answers and is not what was asked for. It may become so: a standby is promoted, SSL turned on.
_MISFITS: Mapping[str, re.Pattern[str]] = {
    "The server does not support SSL, which sslmode asks for.": re.compile("server does not support SSL"),
    "The server is no standby, which target_session_attrs asks for.": re.compile("not in hot standby mode"),
    "The server is a standby, and target_session_attrs asks for another.": re.compile(
        "is in hot standby mode"
    ),
    "The server can be written to, and target_session_attrs asks for another.": re.compile(
        "session is not read-only"
    ),
    "The server is read-only, and target_session_attrs asks for another.": re.compile("session is read-only"),
    "The server's certificate is not trusted.": re.compile("certificate verify failed"),
    "The server's certificate is for another host.": re.compile("server certificate for .* does not match"),
    "A file that SSL needs cannot be used: see sslrootcert, sslcert and sslkey.": re.compile(
        r"(certificate|private key) file .* (does not exist|has group or world access|must be)"
        r"|could not (read|load|open) .*(certificate|private key)"
    ),
    "The server does not offer what channel_binding or require_auth asks for.": re.compile(
        "channel binding (is )?required|authentication method requirement"
    ),
    "The encryption by GSSAPI that gssencmode asks for is not to be had.": re.compile(
        "GSSAPI encryption required|server doesn't support GSSAPI"
    ),
}


def _sqlstate_of_refusal(error: psycopg.Error) -> str:
    return next((state for state, pattern in _REFUSALS.items() if pattern.search(str(error))), "")


def _misfit(error: psycopg.Error) -> str:
    return next((said for said, pattern in _MISFITS.items() if pattern.search(str(error))), "")


def _meaning(sqlstate: str, *, lost: bool) -> _Meaning:
    if not sqlstate and lost:
        return Cure.RECONNECT, StoreAway
    sentence = f"PostgreSQL refused a statement ({sqlstate or 'no code'})."
    refused = _says(InternalError, sentence, code="store.refused")
    return _MEANINGS.get(sqlstate) or _MEANINGS.get(sqlstate[:2]) or (Cure.NONE, refused)
