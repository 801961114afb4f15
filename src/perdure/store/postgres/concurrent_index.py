"""Create or drop indexes CONCURRENTLY, which PostgreSQL does only outside a transaction.

The statement and its record in the history cannot be one atomic change, and an interrupted statement leaves an
invalid index. So we check first whether the index exists. If it is valid, nothing is left to do. If it is invalid, we
drop it and create it again.
"""

from __future__ import annotations

import re
from typing import Any

import psycopg
from psycopg.sql import SQL, Identifier

from perdure.errors import InternalError
from perdure.store.statements import name_tables


def run_alone(connection: psycopg.Connection[Any], statement: str, schema: str) -> None:
    """Create or drop an index, whatever an earlier try left.

    Call this only while the exclusive transaction is open, on another connection.
    """
    if creates := _CREATE.match(statement):
        index, table = creates["index"], Identifier(schema, creates["table"])
        if _is_there(connection, index, schema):
            _wait_for_builders(connection, table)
            if _is_valid(connection, index, schema):
                return
            connection.execute(SQL("DROP INDEX CONCURRENTLY {}").format(Identifier(schema, index)))
    elif not _DROP.match(statement):
        raise InternalError("Only CREATE INDEX and DROP INDEX IF EXISTS may be CONCURRENTLY.")
    connection.execute(name_tables(statement, "postgres", schema).encode())


_CREATE = re.compile(r"CREATE (UNIQUE )?INDEX CONCURRENTLY (?P<index>\w+)\s+ON perdure\.(?P<table>\w+)")
_DROP = re.compile(r"DROP INDEX CONCURRENTLY IF EXISTS perdure\.\w+")


def _wait_for_builders(connection: psycopg.Connection[Any], table: Identifier) -> None:
    """Wait until nobody builds an index of this table: if a client dies, the server continues its build.

    The lock conflicts with a build, but not with reads and writes.
    """
    with connection.transaction():
        connection.execute("SELECT pg_catalog.set_config('lock_timeout', '1h', true)")
        # The builder waits for all snapshots, so this must wait for its lock without one. LOCK takes a snapshot only
        # to look up a table that its session does not know yet. The first LOCK, which no builder delays, does that.
        for mode in ("ACCESS SHARE", "SHARE UPDATE EXCLUSIVE"):
            connection.execute(SQL("LOCK TABLE {} IN {} MODE").format(table, SQL(mode)))


def _is_there(connection: psycopg.Connection[Any], index: str, schema: str) -> bool:
    return _is_valid(connection, index, schema) is not None


def _is_valid(connection: psycopg.Connection[Any], index: str, schema: str) -> bool | None:
    """Whether the index is valid; None if there is no such index."""
    row = connection.execute(
        "SELECT indisvalid FROM pg_catalog.pg_index"
        " JOIN pg_catalog.pg_class ON pg_class.oid = indexrelid"
        " JOIN pg_catalog.pg_namespace ON pg_namespace.oid = relnamespace"
        " WHERE nspname = %s AND relname = %s",
        [schema, index],
    ).fetchone()
    return None if row is None else bool(row[0])
