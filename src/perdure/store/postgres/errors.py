"""Translate PostgreSQL's errors for callers, and find out for which errors a retry may help.

Messages are fixed sentences, because the driver's messages quote values, statements and addresses.
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
    Unavailable,
)

FORBIDDEN: Final = "42501"

MOVED: Final = "PDMVD"
"""The SQLSTATE with which triggers refuse writes if the jobs were moved to another database, or are being moved.

See move/postgres.py.
"""

REFUSED_SETTINGS: Final = "PDSET"
"""Our own code for the case that a server refuses the settings of a new session.

The server uses many codes for this case, and statements may fail with the same codes for other reasons.
"""


class Cure(Enum):
    """What to do about an error."""

    NONE = auto()
    LOOK_AGAIN = auto()  # another transaction wrote the row first: run the operation again to find it
    WAIT = auto()  # a row is locked: an urgent operation gives up, any other operation waits
    AGAIN = auto()  # two transactions were in conflict: run the operation again
    AFRESH = auto()  # the connection's prepared statements are outdated: use another connection
    RECONNECT = auto()  # the database is away: connect again


class Diagnosis(NamedTuple):
    """A driver's error, analyzed. ``error``: the error that the caller gets if the cure does not help.

    ``answered``: the server refused a statement and the connection still works.
    """

    cure: Cure
    sqlstate: str
    error: PerdureError
    answered: bool = False

    @property
    def reason(self) -> str:
        """A short reason for the log."""
        if self.sqlstate or str(self.error) == str(StoreAway()):
            return self.sqlstate or "connection lost"
        message = str(self.error).rstrip(".")
        return message[:1].lower() + message[1:]


def translate(error: Exception) -> Exception:
    """Translate a driver's error to our error. Any other error is returned unchanged."""
    return diagnose(error).error if isinstance(error, psycopg.Error) else error


def diagnose(error: psycopg.Error) -> Diagnosis:
    sqlstate = error.sqlstate or _sqlstate_of_refusal(error)
    if not sqlstate and (misfit := _misfit(error)):
        return Diagnosis(Cure.RECONNECT, "", StoreAway(misfit))
    diagnosis = understand(sqlstate, error, lost=isinstance(error, psycopg.OperationalError))
    return _answered(diagnosis) if _has_answered(error) else diagnosis


def understand(sqlstate: str, error: BaseException, *, lost: bool) -> Diagnosis:
    """Analyze the error of any driver. ``lost``: whether an error without a SQLSTATE means a lost connection."""
    cure, meaning = _meaning(sqlstate, lost=lost)
    _log.debug("PostgreSQL returned the error %s", sqlstate or type(error).__name__)
    return Diagnosis(cure, sqlstate, meaning())


def _has_answered(error: psycopg.Error) -> bool:
    """Whether the server refused a statement, but not for a timeout or a cancel, and did not close the connection.

    ProcessInterrupts is the server's function that raises every timeout and every cancel.
    """
    diag = error.diag
    return diag.severity_nonlocalized == "ERROR" and diag.source_function != "ProcessInterrupts"


def _answered(diagnosis: Diagnosis) -> Diagnosis:
    """Correct a diagnosis, because the connection still works.

    A trigger can raise any code, even the code of a lost connection.
    """
    cure, sqlstate, error, _ = diagnosis
    if isinstance(error, StoreAway):
        error = StoreAway(f"PostgreSQL cannot run a statement now ({sqlstate}).")
        cure = Cure.AGAIN if cure is Cure.RECONNECT else cure
    if isinstance(error, Unavailable):
        error.answered = True
    return Diagnosis(cure, sqlstate, error, answered=True)


_log = logging.getLogger("perdure.store")

_Make = Callable[[], PerdureError]
_Meaning = tuple[Cure, _Make]


def _says(error: type[PerdureError], message: str = "", *, code: str | None = None) -> _Make:
    return lambda: error(message, code=code)


_REFUSED = _says(StoreAway, "The database refused the login: check user, password and access rules.")
_MIGRATE = "perdure's tables do not exist in this database; call app.migrate() or run perdure migrate."
_CONTENDED = "Other transactions kept changing the same rows; try again."
_TOO_SLOW = "The database took too long for a statement."
_NOT_NOW = "The database is in a state in which it cannot run one of perdure's statements."
_FORBIDDEN = "The database role lacks rights on perdure's tables: run perdure grants to list what it needs."
_BAD_VALUE = "The database cannot store a value."
_LIMIT = "A limit of the database was exceeded."
_UNSUPPORTED = "The database does not support one of perdure's statements."
_MOVED = (
    "The jobs of this database were moved to another one, or are being moved: run perdure check for details."
)
_UNPREPARED = "The database lost prepared statements. If there is a pooler, use prepare=False."
_SETTINGS = (
    "The server refuses settings of the connection: see options and replication in the URL, and $PGOPTIONS."
)

# The keys are SQLSTATEs, or classes of SQLSTATEs, which are their first two characters.
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
    # "Cached plan must not change result type": another process has migrated the schema meanwhile.
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
    "53300": (Cure.RECONNECT, _says(StoreAway, "The database has no free connections.")),
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
    # A value is nested too deeply. The other codes of class 54 need not be about a value.
    "54001": (Cure.NONE, _says(Invalid, _BAD_VALUE, code="store.bad_value")),
    "54": (Cure.NONE, _says(Invalid, _LIMIT, code="store.limit")),
}

# libpq reports no SQLSTATE for a failed login, only the server's message. A message in another language is not
# recognized, and then the operation is retried until patience runs out.
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

# libpq also reports no SQLSTATE for a server that does not meet the URL's requirements. A retry may help: somebody may
# promote the standby, or turn on SSL.
_MISFITS: Mapping[str, re.Pattern[str]] = {
    "The server does not support SSL, which sslmode requires.": re.compile("server does not support SSL"),
    "The server is not a standby, but target_session_attrs requires one.": re.compile(
        "not in hot standby mode"
    ),
    "The server is a standby, which target_session_attrs excludes.": re.compile("is in hot standby mode"),
    "The server is writable, which target_session_attrs excludes.": re.compile("session is not read-only"),
    "The server is read-only, which target_session_attrs excludes.": re.compile("session is read-only"),
    "The server's certificate is not trusted.": re.compile("certificate verify failed"),
    "The server's certificate is for another host.": re.compile("server certificate for .* does not match"),
    "A file that SSL needs cannot be used: see sslrootcert, sslcert and sslkey.": re.compile(
        r"(certificate|private key) file .* (does not exist|has group or world access|must be)"
        r"|could not (read|load|open) .*(certificate|private key)"
    ),
    "The server does not offer what channel_binding or require_auth requires.": re.compile(
        "channel binding (is )?required|authentication method requirement"
    ),
    "GSSAPI encryption, which gssencmode requires, is not available.": re.compile(
        "GSSAPI encryption required|server doesn't support GSSAPI"
    ),
}


def _sqlstate_of_refusal(error: psycopg.Error) -> str:
    return next((state for state, pattern in _REFUSALS.items() if pattern.search(str(error))), "")


def _misfit(error: psycopg.Error) -> str:
    return next((message for message, pattern in _MISFITS.items() if pattern.search(str(error))), "")


def _meaning(sqlstate: str, *, lost: bool) -> _Meaning:
    if not sqlstate and lost:
        return Cure.RECONNECT, StoreAway
    sentence = f"PostgreSQL refused a statement ({sqlstate or 'no code'})."
    refused = _says(InternalError, sentence, code="store.refused")
    return _MEANINGS.get(sqlstate) or _MEANINGS.get(sqlstate[:2]) or (Cure.NONE, refused)
