"""The PostgreSQL target of migrations: transactions on a separate connection, by one migrating process at a time.

It takes only locks that end with the transaction, because the connection may go through a pooler, see
docs/decisions/0017.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import Any, Final

import psycopg

from perdure.errors import StoreBusy
from perdure.ops.op import Param, Row
from perdure.store.postgres.concurrent_index import run_alone
from perdure.store.postgres.connect import connect
from perdure.store.schema.files import bare
from perdure.store.statements import Dialect, name_tables

# In seconds.
_LONGEST_WAIT: Final = 600.0
_PAUSE: Final = 0.1

# Quoted names and texts stay unchanged, except that percent signs are doubled: psycopg interprets percent signs even
# inside quotes.
_TOKEN = re.compile(r"""(?P<literal>"(?:[^"]|"")*"|'(?:[^']|'')*'|%)|(?<![:\w]):(?P<param>[a-z_]+)""")

# While we wait for a table's lock, all later statements on that table are blocked. So give up early and try again.
_SET_UP: Final = """
SELECT pg_catalog.set_config('statement_timeout', '1h', true),
       pg_catalog.set_config('lock_timeout', '5s', true),
       pg_catalog.set_config('idle_in_transaction_session_timeout', '0', true)
"""


class PostgresTarget:
    """A PostgreSQL database to migrate."""

    dialect: Dialect = "postgres"

    def __init__(self, url: str, connection: psycopg.Connection[Any], schema: str) -> None:
        self._url = url
        self._connection = connection
        self.schema = schema

    @contextmanager
    def look(self) -> Iterator[None]:
        # All reads need the same snapshot. With two snapshots, tables created between the reads would seem to have no
        # history.
        with self._transaction("REPEATABLE READ READ ONLY"):
            yield

    @contextmanager
    def exclusive_transaction(self) -> Iterator[None]:
        until = time.monotonic() + _LONGEST_WAIT
        while True:
            # READ COMMITTED shows the changes of the process that held the lock before us.
            with self._transaction("READ COMMITTED READ WRITE"):
                if self._take_turn():
                    yield
                    return
            if time.monotonic() > until:
                raise StoreBusy("Another process has been migrating this database for ten minutes.")
            time.sleep(_PAUSE * random.uniform(0.5, 1.5))

    def make_room(self) -> None:
        # IF NOT EXISTS is not used: it requires the right to create a schema even if the schema exists.
        if not self.rows(
            "SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = CAST(:schema AS text)",
            {"schema": self.schema},
        ):
            self.run('CREATE SCHEMA "{}"'.format(self.schema.replace('"', '""')))

    def run(self, statement: str) -> None:
        self._connection.execute(name_tables(statement, "postgres", self.schema).encode())

    def run_online(self, statement: str) -> None:
        if "CONCURRENTLY" not in bare(statement):
            self.run(statement)
            return
        # A statement with parameters keeps its snapshot on the server until the next statement. The index build would
        # wait for that snapshot, and we would wait for the build. A statement without parameters keeps no snapshot, so
        # run one now.
        self._connection.execute("SELECT 1")
        with connect(self._url) as beside:
            run_alone(beside, bare(statement), self.schema)

    def rows(self, sql: str, params: Mapping[str, Param] = {}) -> list[Row]:
        # The schema is inserted last, so that ``_spell`` does not see its name, which may have a colon or percent sign.
        spelled = name_tables(_spell(sql), "postgres", self.schema.replace("%", "%%"))
        return self._connection.execute(spelled.encode(), params).fetchall()

    @contextmanager
    def _transaction(self, mode: str) -> Iterator[None]:
        self._connection.execute(f"BEGIN ISOLATION LEVEL {mode}".encode())
        try:
            self._connection.execute(_SET_UP.encode())
            yield
        except BaseException:
            # Report the original error, not a failed rollback.
            with suppress(psycopg.Error):
                self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def _take_turn(self) -> bool:
        # Do not wait for the lock: a waiting statement has a snapshot, and CREATE INDEX CONCURRENTLY waits for all
        # snapshots. If the holder of the lock builds an index, the two would wait for each other for ever.
        ((mine,),) = self.rows(
            "SELECT pg_catalog.pg_try_advisory_xact_lock(CAST(:key AS bigint))",
            {"key": _key("perdure's turn to migrate ", self.schema)},
        )
        if mine and not self._has_migrated():
            # Version 0.1.0, which has only the first migration, takes this lock instead.
            self.rows(
                "SELECT pg_catalog.pg_advisory_xact_lock(CAST(:key AS bigint))",
                {"key": _key("perdure migrates ", self.schema)},
            )
        return bool(mine)

    def _has_migrated(self) -> bool:
        there = self.rows(
            "SELECT 1 FROM pg_catalog.pg_tables"
            " WHERE schemaname = CAST(:schema AS text) AND tablename = 'migration'",
            {"schema": self.schema},
        )
        return bool(there)


@contextmanager
def target(url: str, schema: str) -> Iterator[PostgresTarget]:
    with connect(url) as connection:
        yield PostgresTarget(url, connection, schema)


def _spell(sql: str) -> str:
    """Convert ``:name`` to psycopg's parameters."""
    return _TOKEN.sub(
        lambda token: f"%({token['param']})s" if token["param"] else token["literal"].replace("%", "%%"), sql
    )


def _key(purpose: str, schema: str) -> int:
    return int.from_bytes(sha256((purpose + schema).encode()).digest()[:8], signed=True)
