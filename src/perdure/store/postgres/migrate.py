"""A PostgreSQL database as migrations see it: transactions on a connection of its own, one migrating process at a time.

No lock outlives its transaction, see docs/decisions/0017: a pooler may stand between.
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

# Quoted names and texts stay as they are, but for percent signs, which psycopg reads even there.
_TOKEN = re.compile(r"""(?P<literal>"(?:[^"]|"")*"|'(?:[^']|'')*'|%)|(?<![:\w]):(?P<param>[a-z_]+)""")

# To queue for a table's lock stops everybody who needs it after us: rather give up and come again.
_SET_UP: Final = """
SELECT pg_catalog.set_config('statement_timeout', '1h', true),
       pg_catalog.set_config('lock_timeout', '5s', true),
       pg_catalog.set_config('idle_in_transaction_session_timeout', '0', true)
"""


class PostgresTarget:
    """A connection as migrations see it."""

    dialect: Dialect = "postgres"

    def __init__(self, url: str, connection: psycopg.Connection[Any], schema: str) -> None:
        self._url = url
        self._connection = connection
        self.schema = schema

    @contextmanager
    def look(self) -> Iterator[None]:
        # One snapshot: tables that appear between two looks would seem to have no history.
        with self._transaction("REPEATABLE READ READ ONLY"):
            yield

    @contextmanager
    def exclusive_transaction(self) -> Iterator[None]:
        until = time.monotonic() + _LONGEST_WAIT
        while True:
            # READ COMMITTED sees what the process before us has done.
            with self._transaction("READ COMMITTED READ WRITE"):
                if self._take_turn():
                    yield
                    return
            if time.monotonic() > until:
                raise StoreBusy("Another process has been migrating this database for ten minutes.")
            time.sleep(_PAUSE * random.uniform(0.5, 1.5))

    def make_room(self) -> None:
        # Not IF NOT EXISTS: that asks for the right to create one even where one exists.
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
        # A statement with parameters stays open on the server, with its snapshot, until another takes its place; an
        # index would wait for it, and we for the index. One without parameters leaves nothing open.
        self._connection.execute("SELECT 1")
        with connect(self._url) as beside:
            run_alone(beside, bare(statement), self.schema)

    def rows(self, sql: str, params: Mapping[str, Param] = {}) -> list[Row]:
        # The schema last: its name may contain anything, also a colon or a percent sign.
        spelled = name_tables(_spell(sql), "postgres", self.schema.replace("%", "%%"))
        return self._connection.execute(spelled.encode(), params).fetchall()

    @contextmanager
    def _transaction(self, mode: str) -> Iterator[None]:
        self._connection.execute(f"BEGIN ISOLATION LEVEL {mode}".encode())
        try:
            self._connection.execute(_SET_UP.encode())
            yield
        except BaseException:
            # What went wrong is worth telling, not that it could not be rolled back.
            with suppress(psycopg.Error):
                self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def _take_turn(self) -> bool:
        # Whoever waits inside a statement has a snapshot, and CREATE INDEX CONCURRENTLY waits for all of those: one
        # who waited for the lock while its holder builds an index would wait for ever. So nobody waits in it.
        ((mine,),) = self.rows(
            "SELECT pg_catalog.pg_try_advisory_xact_lock(CAST(:key AS bigint))",
            {"key": _key("perdure's turn to migrate ", self.schema)},
        )
        if mine and not self._has_migrated():
            # The lock of 0.1.0, which knows no exclusive transactions and no migration but the first.
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
    """``:name`` as psycopg takes it."""
    return _TOKEN.sub(
        lambda token: f"%({token['param']})s" if token["param"] else token["literal"].replace("%", "%%"), sql
    )


def _key(purpose: str, schema: str) -> int:
    return int.from_bytes(sha256((purpose + schema).encode()).digest()[:8], signed=True)
