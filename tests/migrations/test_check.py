"""The check changes nothing, whatever it finds."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from perdure.errors import SchemaError, SchemaForeign, SchemaMissing, SchemaOutdated
from perdure.store.postgres.migrate import target
from perdure.store.postgres.store import PostgresStore
from perdure.store.schema.files import migrations
from perdure.store.sqlite.store import SqliteStore
from tests.migrations.database import Database

STATES: dict[str, tuple[Callable[[Database], object], type[SchemaError] | None]] = {
    "empty": (lambda database: database.run("CREATE TABLE mine (id integer)"), SchemaMissing),
    "up to date": (Database.migrate, None),
    "outdated": (lambda database: database.migrate(migrations(database.dialect)), SchemaOutdated),
    "lost": (
        lambda database: [database.migrate(), database.run("DROP TABLE perdure.migration")],
        SchemaForeign,
    ),
}


@pytest.mark.parametrize("state", STATES)
def test_it_changes_nothing(database: Database, state: str, tmp_path: Path) -> None:
    prepare, error = STATES[state]
    prepare(database)
    before = traces(database, tmp_path)
    for look in (SqliteStore.check_schema, SqliteStore.migration_sql):
        with database.store() as store:
            if error is not None and (look is SqliteStore.check_schema or error is SchemaForeign):
                with pytest.raises(error):
                    getattr(store, look.__name__)()
            else:
                getattr(store, look.__name__)()
    assert traces(database, tmp_path) == before


def traces(database: Database, tmp_path: Path) -> object:
    """All that a write would change: the bytes of a file, the rows of a catalog and of the history."""
    if database.dialect == "sqlite":
        return {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    catalog = database.run("SELECT relname, ctid::text, xmin::text FROM pg_class ORDER BY relname, oid")
    if ("migration", "perdure") not in database.run("SELECT tablename, schemaname FROM pg_tables"):
        return catalog
    return catalog, database.run("SELECT ctid::text, xmin::text FROM perdure.migration")


def test_a_file_that_does_not_exist_is_not_made(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "none.db"))
    with pytest.raises(SchemaMissing):
        store.check_schema()
    assert "CREATE TABLE perdure_job" in store.migration_sql()
    store.close()
    assert list(tmp_path.iterdir()) == []


def test_on_postgresql_it_looks_in_a_transaction_that_cannot_write(postgres: Database) -> None:
    with (
        target(postgres.url, "perdure") as database,
        pytest.raises(psycopg.errors.ReadOnlySqlTransaction),
        database.look(),
    ):
        database.run("CREATE TABLE x (id integer)")


def test_on_postgresql_it_needs_no_right_but_to_read_the_history(postgres: Database) -> None:
    postgres.migrate(migrations("postgres"))
    postgres.run("CREATE ROLE visitor LOGIN PASSWORD 'x'")
    try:
        postgres.run("GRANT USAGE ON SCHEMA perdure TO visitor")
        postgres.run("GRANT SELECT ON perdure.migration TO visitor")
        store = PostgresStore(psycopg.conninfo.make_conninfo(postgres.url, user="visitor", password="x"))
        store.check_schema()
        assert store.migrate() == []
        store.close()
    finally:
        postgres.run("DROP OWNED BY visitor")
        postgres.run("DROP ROLE visitor")


def test_on_sqlite_it_looks_while_somebody_writes(sqlite_url: str) -> None:
    database = Database(sqlite_url)
    database.migrate()
    with database.connection() as connection:
        connection.execute("BEGIN IMMEDIATE")
        with database.store(patience=0) as store:
            store.check_schema()
            assert store.migrate() == []
        connection.execute("ROLLBACK")


def test_on_sqlite_its_connection_cannot_write(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from perdure.store.schema import migrate
    from perdure.store.sqlite.migrate import SqliteTarget

    database = Database(sqlite_url)
    database.migrate()
    monkeypatch.setattr(
        migrate, "check", lambda target, known: SqliteTarget.run(target, "DROP TABLE perdure.more")
    )
    with pytest.raises(Exception, match="written") as refused:
        database.check()
    assert not isinstance(refused.value, sqlite3.Error)
    assert database.run("SELECT count(*) FROM perdure.more") == [(1,)]
