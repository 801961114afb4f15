"""What a worker does about an error of the database: wait, try row by row, or blame the row."""

from __future__ import annotations

from perdure.errors import Conflict, InternalError, Invalid, PerdureError, SchemaError, Unavailable

OUT_OF_SERVICE = (Unavailable, SchemaError)
"""Errors that a running worker waits out. If tables vanish, the database is being restored or recreated."""

DAMAGED = (Invalid, Conflict, InternalError, ArithmeticError, LookupError, TypeError, ValueError)
"""Errors after which a statement about many rows is repeated row by row."""

PERHAPS_REFUSED = (*DAMAGED, *OUT_OF_SERVICE)
"""``DAMAGED``, and errors that usually mean an outage but that a trigger can raise for one row. See ``is_refusal``."""

FORBIDDEN = "store.forbidden"
"""The error code if the database role lacks a privilege."""

OF_THE_ROW = frozenset(
    {"store.too_large", "store.undecodable", "job.damaged", "job.bad_snapshot", "workflow.bad_snapshot"}
)
"""Codes of errors that only the row's own values can cause."""

MAYBE_OF_THE_ROW = frozenset({"store.bad_value", "store.constraint"})
"""Codes of errors that a row's values can cause, but that a trigger can also raise for all rows."""

NOT_DONE = (*OUT_OF_SERVICE, InternalError, Invalid, Conflict)
"""Errors after which a worker's loop logs why and tries again. Any other error is a bug and ends the worker."""


def is_refusal(error: Exception) -> bool:
    """Whether one row may be the cause.

    No row is the cause if the database was away or locked, or if a statement ran out of time. Such errors are not
    ``answered``.
    """
    return not isinstance(error, Unavailable) or error.answered


def is_of_the_row(error: Exception) -> bool:
    """Whether only the row, or its outcome, can be the cause.

    Python's own errors, such as ValueError, come from reading the row.
    """
    if not isinstance(error, PerdureError) or error.code in OF_THE_ROW:
        return True
    return isinstance(error, Invalid | Conflict) and not error.code.startswith("store.")


def may_be_of_the_row(error: Exception) -> bool:
    return is_of_the_row(error) or (isinstance(error, PerdureError) and error.code in MAYBE_OF_THE_ROW)


def safe_message(error: Exception) -> str:
    """The message of an error that perdure raised. Messages of other errors may quote values, so they are replaced."""
    return (
        str(error) if isinstance(error, PerdureError) else f"A row cannot be read ({type(error).__name__})."
    )


def unserved(error: Exception) -> Unavailable:
    """The error to raise if no row can be claimed. The worker then waits, as if the database were away."""
    return Unavailable(safe_message(error), code=error.code if isinstance(error, PerdureError) else None)


def own_message(error: Exception) -> str:
    """The message of an error that perdure raised itself. Others are left out: the database may quote values."""
    return str(error) if isinstance(error, Invalid | Conflict) else ""
