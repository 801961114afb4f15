"""Find the driver's connection inside Django's. The driver is psycopg, psycopg2 or ``sqlite3``."""

from __future__ import annotations

from typing import Any, Final

from django.db.utils import DatabaseError, InterfaceError

from perdure.errors import StoreAway, UnsupportedConnection
from perdure.store.borrowed import refusals
from perdure.store.borrowed.join import Wrapper


def _open(connection: Any) -> Any:
    try:
        connection.validate_thread_sharing()
    except DatabaseError:
        raise refusals.of_another_thread() from None
    try:
        autocommit = connection.get_autocommit()
    except (DatabaseError, InterfaceError):
        raise StoreAway from None
    if autocommit:
        raise UnsupportedConnection(
            "No transaction is open on Django's connection: call it inside transaction.atomic().",
            code="conn.autocommit",
        )
    if connection.needs_rollback:
        raise refusals.aborted()
    return connection.connection


DJANGO: Final = Wrapper("sync", _open)
