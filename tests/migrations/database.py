"""A database of either kind, migrated and read here or in a process that may be killed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import psycopg

from perdure.internal.failpoints import VARIABLE
from perdure.store.postgres.store import PostgresStore
from perdure.store.schema.files import Migration
from perdure.store.sqlite.store import SqliteStore
from perdure.store.statements import Dialect, name_tables
from tests.harness import processes
from tests.migrations.samples import samples

SHAPES: dict[Dialect, list[str]] = {
    "sqlite": ["SELECT name, sql FROM sqlite_master ORDER BY name"],
    "postgres": [
        "SELECT table_name, column_name, data_type, is_nullable, column_default FROM information_schema.columns"
        " WHERE table_schema = 'perdure' ORDER BY 1, 2",
        "SELECT indexname, indexdef, indisvalid FROM pg_indexes JOIN pg_index"
        " ON indexrelid = format('%I.%I', schemaname, indexname)::regclass"
        " WHERE schemaname = 'perdure' ORDER BY 1",
        "SELECT conname, pg_get_constraintdef(oid), convalidated FROM pg_constraint"
        " WHERE connamespace = to_regnamespace('perdure') ORDER BY 1, conrelid::regclass::text, 2",
    ],
}


class Database:
    """Opened again for every action."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.dialect: Dialect = "postgres" if url.startswith("postgresql") else "sqlite"
        self.samples = samples(self.dialect)

    @contextmanager
    def store(
        self, migrations: Sequence[Migration] | None = None, *, patience: float = 30
    ) -> Iterator[PostgresStore | SqliteStore]:
        """As a version of perdure with these migrations has it."""
        known = self.samples if migrations is None else migrations
        with closing(
            PostgresStore(self.url, migrations=known, patience=patience)
            if self.dialect == "postgres"
            else SqliteStore(self.url.removeprefix("sqlite:///"), migrations=known, patience=patience)
        ) as store:
            yield store

    def migrate(self, migrations: Sequence[Migration] | None = None, *, to: int | None = None) -> list[int]:
        with self.store(migrations) as store:
            return store.migrate(to=to)

    def check(self, migrations: Sequence[Migration] | None = None) -> None:
        with self.store(migrations) as store:
            store.check_schema()

    @contextmanager
    def connection(self) -> Iterator[Any]:
        """A plain connection, without perdure."""
        if self.dialect == "postgres":
            with psycopg.connect(self.url, autocommit=True) as connection:
                yield connection
            return
        import sqlite3

        with closing(
            sqlite3.connect(self.url.removeprefix("sqlite:///"), isolation_level=None, timeout=30)
        ) as connection:
            yield connection

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        """A statement that says ``perdure.job``."""
        with self.connection() as connection:
            cursor = connection.execute(name_tables(sql, self.dialect))
            return cursor.fetchall() if cursor.description else []

    def history(self) -> list[tuple[Any, ...]]:
        return self.run("SELECT version, finished FROM perdure.migration ORDER BY version")

    def shape(self) -> list[list[tuple[Any, ...]]]:
        """Everything that migrations create, and the rows they wrote."""
        shape = [self.run(sql) for sql in SHAPES[self.dialect]]
        for table in ("migration", "more"):
            if any(table in str(row[0]) for row in shape[0]):
                columns = "version, checksum, finished" if table == "migration" else "id, note, size"
                shape.append(self.run(f"SELECT {columns} FROM perdure.{table} ORDER BY 1"))
        return shape


def start(url: str, *, failpoint: str = "") -> subprocess.Popen[str]:
    """A process that migrates when it receives a line, and prints the versions that it finished."""
    return processes.start("-m", "tests.migrations.program", url, env={VARIABLE: failpoint})


def end(process: subprocess.Popen[str]) -> tuple[int, list[int]]:
    """How it ended, and the versions it finished."""
    output, errors = process.communicate(timeout=60)
    assert process.returncode in (0, -9), errors
    return process.returncode, [int(version) for version in output.split()]


@contextmanager
def fork_server(url: str) -> Iterator[Callable[[str], tuple[int, list[int]]]]:
    """Migrate in a new process with a failpoint; returns how it ended, and the versions it finished."""
    with processes.conversation("-m", "tests.migrations.fork_server", url) as ask:

        def run(failpoint: str) -> tuple[int, list[int]]:
            code, versions = json.loads(ask(failpoint))
            return code, versions

        yield run
