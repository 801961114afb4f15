"""Migrations: applied once, in order, by one process at a time; a history that does not fit is refused."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from perdure.errors import (
    PerdureError,
    SchemaChanged,
    SchemaDirty,
    SchemaError,
    SchemaMissing,
    SchemaNewer,
    SchemaOutdated,
    StoreBusy,
    StoreReadOnly,
)
from perdure.store import migrate
from perdure.store.migrate import Migration, Target, migrations
from perdure.store.postgres import PostgresStore
from perdure.store.postgres_migrate import _spell
from perdure.store.postgres_migrate import target as postgres_target
from perdure.store.sqlite_migrate import SqliteTarget
from perdure.store.statements import Dialect, name_tables
from tests.store.waiting import until

ROOT = Path(__file__).parents[2]
WEIRD = 'we"ird x;--'

NEXT = Migration(
    3, "more things", "CREATE TABLE perdure.more (id integer); CREATE TABLE perdure.most (id integer);"
)


class Database:
    """A database of either kind, reached afresh for every act."""

    def __init__(self, url: str, schema: str = "perdure") -> None:
        self.url, self.schema = url, schema
        self.dialect: Dialect = "postgres" if url.startswith("postgresql") else "sqlite"

    def apply(self) -> list[int]:
        with self.target() as target:
            return migrate.apply(target)

    def check(self) -> None:
        with self.target() as target:
            migrate.check(target)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with self.target() as target:
            return target.rows(name_tables(sql, self.dialect, self.schema))

    @contextmanager
    def target(self) -> Iterator[Target]:
        if self.dialect == "postgres":
            with postgres_target(self.url, self.schema) as target:
                yield target
            return
        with closing(
            sqlite3.connect(self.url.removeprefix("sqlite:///"), isolation_level=None)
        ) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield SqliteTarget(connection)
            connection.execute("COMMIT")


@pytest.fixture
def database(url: str) -> Database:
    return Database(url)


@pytest.fixture
def with_second(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From now on this version of perdure has one more migration."""

    def add() -> None:
        monkeypatch.setattr(migrate, "migrations", lambda dialect: (*migrations(dialect), NEXT))

    return add


def test_a_new_database_gets_everything_and_then_nothing(database: Database) -> None:
    versions = [migration.version for migration in migrations(database.dialect)]
    assert database.apply() == versions
    assert database.apply() == []
    database.check()
    assert database.rows("SELECT count(*) FROM perdure.job") == [(0,)]


def test_the_history_tells_what_was_applied(database: Database) -> None:
    database.apply()
    history = database.rows(
        "SELECT version, name, checksum, finished, applied_at FROM perdure.migration ORDER BY 1"
    )
    assert [row[:3] for row in history] == [
        (migration.version, migration.name, migration.checksum) for migration in migrations(database.dialect)
    ]
    assert all(finished and applied for *_, finished, applied in history)
    assert migrations(database.dialect)[0].name == "ledger"


def test_what_is_missing_is_named_and_applied(database: Database, with_second: Callable[[], None]) -> None:
    database.apply()
    with_second()
    with pytest.raises(SchemaOutdated, match=r"lacks migration 0003 more things; call app"):
        database.check()
    assert database.apply() == [NEXT.version]
    database.check()
    assert database.rows("SELECT count(*) FROM perdure.most") == [(0,)]


def test_a_migration_that_fails_leaves_nothing_behind(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Migration(NEXT.version, "broken", NEXT.text + "CREATE TABLE perdure.most (id integer);")
    database.apply()
    monkeypatch.setattr(migrate, "migrations", lambda dialect: (*migrations(dialect), broken))
    with pytest.raises((psycopg.Error, sqlite3.Error)):
        database.apply()
    versions = [(migration.version,) for migration in migrations(database.dialect)]
    assert database.rows("SELECT version FROM perdure.migration ORDER BY 1") == versions
    with pytest.raises(SchemaOutdated):
        database.check()


def test_no_history_means_no_tables(database: Database) -> None:
    with pytest.raises(SchemaMissing, match=r"call app\.migrate\(\)"):
        database.check()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ("UPDATE perdure.migration SET checksum = 'other'", SchemaChanged, "0001 ledger"),
        ("UPDATE perdure.migration SET finished = (1 = 0)", SchemaDirty, "0001 ledger"),
        (
            "UPDATE perdure.migration SET version = 9999, name = 'from the future' WHERE version = 2",
            SchemaNewer,
            "9999 from the future",
        ),
        ("DELETE FROM perdure.migration", SchemaMissing, "app.migrate"),
    ],
)
def test_a_history_that_does_not_fit_is_refused(
    database: Database, change: str, error: type[SchemaError], message: str
) -> None:
    database.apply()
    with database.target() as target:
        target.script(name_tables(change, database.dialect))
    with pytest.raises(error, match=message):
        database.check()
    with pytest.raises((SchemaError, psycopg.Error, sqlite3.Error)):
        database.apply()


def test_check_never_writes(database: Database, with_second: Callable[[], None]) -> None:
    with pytest.raises(SchemaMissing):
        database.check()
    assert tables(database) == []
    database.apply()
    before = tables(database)
    with_second()
    with pytest.raises(SchemaOutdated):
        database.check()
    assert tables(database) == before


def test_a_store_checks_in_a_transaction_that_cannot_write(postgres_url: str) -> None:
    with (
        postgres_target(postgres_url, "perdure", read_only=True) as target,
        pytest.raises(psycopg.Error) as refused,
    ):
        target.script("CREATE TABLE x (id integer)")
    assert refused.value.sqlstate == "25006"


@pytest.mark.parametrize("schema", ["perdure", WEIRD, "100%", ":now", "Ä"])
def test_a_store_migrates_a_schema_of_any_name(postgres_url: str, schema: str) -> None:
    store = PostgresStore(postgres_url, schema=schema)
    with pytest.raises(SchemaMissing):
        store.check_schema()
    assert store.migrate() == [migration.version for migration in migrations("postgres")]
    assert store.migrate() == []
    store.check_schema()
    with psycopg.connect(postgres_url) as connection:
        found = connection.execute(
            "SELECT DISTINCT schemaname FROM pg_tables WHERE tablename = 'job'"
        ).fetchall()
    assert found == [(schema,)]
    store.close()


def test_two_schemas_live_side_by_side(postgres_url: str) -> None:
    for schema in ("one", "two"):
        store = PostgresStore(postgres_url, schema=schema)
        assert store.migrate()
        store.close()


def test_processes_that_start_at_once_migrate_once(postgres_url: str) -> None:
    script = (
        "import sys; from perdure.store.postgres import PostgresStore\n"
        "store = PostgresStore(sys.argv[1]); sys.stdin.readline(); print(*store.migrate())\n"
        "store.check_schema()"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, postgres_url],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    outputs = sorted(process.communicate(timeout=60)[0].strip() for process in processes)
    assert [process.returncode for process in processes] == [0] * 4
    everything = " ".join(str(migration.version) for migration in migrations("postgres"))
    assert outputs == ["", "", "", everything]


def test_one_migrates_at_a_time(postgres_url: str) -> None:
    store = PostgresStore(postgres_url)
    waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'advisory' AND datname = current_database()"
    with ThreadPoolExecutor(1) as thread, psycopg.connect(postgres_url, autocommit=True) as holder:
        holder.execute("SELECT pg_advisory_lock(%s)", [migrate._lock_key("perdure")])
        migrated = thread.submit(store.migrate)
        try:
            until(lambda: holder.execute(waiting).fetchone())
        finally:
            holder.execute("SELECT pg_advisory_unlock_all()")
        assert migrated.result(30)
    store.close()


def test_the_lock_ends_with_the_transaction(postgres_url: str) -> None:
    store = PostgresStore(postgres_url)
    store.migrate()
    store.close()
    with psycopg.connect(postgres_url) as connection:
        locks = connection.execute(
            "SELECT count(*) FROM pg_locks JOIN pg_database ON database = pg_database.oid"
            " WHERE locktype = 'advisory' AND datname = current_database()"
        ).fetchall()
    assert locks == [(0,)]


def test_an_existing_schema_asks_for_no_right_to_create_one(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute("CREATE ROLE tenant LOGIN PASSWORD 'x'")
        try:
            strange = PostgresStore(psycopg.conninfo.make_conninfo(postgres_url, user="tenant", password="x"))
            with pytest.raises(StoreReadOnly) as forbidden:
                strange.migrate()
            assert forbidden.value.code == "store.forbidden"
            admin.execute("CREATE SCHEMA perdure AUTHORIZATION tenant")
            assert strange.migrate()
            strange.close()
        finally:
            admin.execute("DROP OWNED BY tenant")
            admin.execute("DROP ROLE tenant")


def test_errors_of_a_migration_are_the_store_s(postgres_url: str, with_second: Callable[[], None]) -> None:
    """A table's lock is not waited for long: whoever needs the table would wait behind us."""
    store = PostgresStore(postgres_url, patience=0)
    store.migrate()
    with_second()
    with psycopg.connect(postgres_url) as holder:
        holder.execute("LOCK TABLE perdure.migration")
        with pytest.raises(StoreBusy):
            store.migrate()
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE perdure.most (id integer)")
    with pytest.raises(PerdureError) as refused:
        store.migrate()
    assert refused.value.code == "store.refused"
    store.close()


def test_parameters_are_found_outside_quotes_only() -> None:
    assert _spell("""SELECT :a, x::text, ':b', "x:c %" FROM "we""ird :d" WHERE 5 % :e""") == (
        """SELECT %(a)s, x::text, ':b', "x:c %%" FROM "we""ird :d" WHERE 5 %% %(e)s"""
    )


def test_both_databases_have_the_same_migrations() -> None:
    titles = [[str(migration) for migration in migrations(dialect)] for dialect in ("sqlite", "postgres")]
    assert titles[0] == titles[1]


def tables(database: Database) -> list[tuple[Any, ...]]:
    if database.dialect == "sqlite":
        return database.rows("SELECT name FROM sqlite_master ORDER BY name")
    return database.rows(
        "SELECT schemaname, tablename FROM pg_tables WHERE schemaname <> 'pg_catalog'"
        " AND schemaname <> 'information_schema' ORDER BY 1, 2"
    )
