"""Create or drop indexes CONCURRENTLY, which PostgreSQL does only outside a transaction.

The statement and its record in the table ``migration`` cannot be one atomic change, and an interrupted statement
leaves an invalid index. So we check first whether the index exists. If it is valid, nothing is left to do. If it is
invalid, we drop it and create it again.
"""

from __future__ import annotations

import re
from time import monotonic, sleep
from typing import Any

import psycopg
from psycopg.sql import SQL, Identifier

from perdure.errors import InternalError, StoreBusy
from perdure.store.statements import name_tables

LONGEST_BUILD, POLL = 3600.0, 0.1
"""Seconds to wait for another client's build of an index, and seconds between two checks."""


def run_alone(connection: psycopg.Connection[Any], statement: str, schema: str) -> None:
    """Create or drop an index, whatever state an earlier try left it in.

    Call this while an exclusive transaction of the migration is open on another connection.
    """
    if creates := _CREATE.match(statement):
        index, table = creates["index"], creates["table"]
        if _is_there(connection, index, schema):
            _wait_for_builders(connection, table, schema)
            if _is_valid(connection, index, schema):
                return
            connection.execute(SQL("DROP INDEX CONCURRENTLY {}").format(Identifier(schema, index)))
    elif not _DROP.match(statement):
        raise InternalError("Only CREATE INDEX and DROP INDEX IF EXISTS may be CONCURRENTLY.")
    connection.execute(name_tables(statement, "postgres", schema).encode())


_CREATE = re.compile(r"CREATE (UNIQUE )?INDEX CONCURRENTLY (?P<index>\w+)\s+ON perdure\.(?P<table>\w+)")
_DROP = re.compile(r"DROP INDEX CONCURRENTLY IF EXISTS perdure\.\w+")


def _wait_for_builders(connection: psycopg.Connection[Any], table: str, schema: str) -> None:
    """Wait until no index of this table is being built. The server may continue a build whose client has died.

    This polls, because LOCK TABLE could deadlock: while it waits for the build, it may have a snapshot, and the build
    waits for all older snapshots.
    """
    deadline = monotonic() + LONGEST_BUILD
    while connection.execute(_BUILDERS, [schema, table]).fetchone() is not None:
        if monotonic() > deadline:
            raise StoreBusy(f"Somebody still builds an index of the table {table}, or vacuums it.")
        sleep(POLL)


_BUILDERS = """
SELECT 1
  FROM pg_catalog.pg_locks
  JOIN pg_catalog.pg_class ON pg_class.oid = relation
  JOIN pg_catalog.pg_namespace ON pg_namespace.oid = relnamespace
  LEFT JOIN pg_catalog.pg_stat_activity ON pg_stat_activity.pid = pg_locks.pid
 WHERE nspname = %s AND relname = %s AND granted AND mode = 'ShareUpdateExclusiveLock'
   AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
   AND backend_type IS DISTINCT FROM 'autovacuum worker'"""
"""A build holds this lock from its beginning to its end."""


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
