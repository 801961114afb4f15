"""The SQL scripts create the same tables, and the check accepts them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from perdure import App
from perdure.cli import program
from perdure.errors import Invalid, InvalidConfig, SchemaOutdated
from perdure.schema import install_sql
from perdure.store.schema.files import Migration, migrations
from perdure.store.schema.pending import Work
from perdure.store.schema.script import install, script
from tests.migrations.database import Database, fork_server


def run(*args: str) -> Result:
    return CliRunner().invoke(program, [*args])


def perform(database: Database, text: str) -> None:
    """As psql or sqlite3 do: each statement by itself."""
    from perdure.store.schema.files import split

    with database.connection() as connection:
        for statement in split(text):
            connection.execute(statement)


def renewed(database: Database, tmp_path: Path) -> Database:
    """Another one, empty again."""
    if database.dialect == "sqlite":
        return Database(f"sqlite:///{tmp_path / 'other.db'}")
    database.run("DROP SCHEMA perdure CASCADE")
    return database


def test_the_statements_for_one_transaction_make_what_a_migration_makes(
    database: Database, tmp_path: Path
) -> None:
    database.migrate()
    expected = database.shape()
    other = renewed(database, tmp_path)
    with other.connection() as connection:
        connection.execute("BEGIN")
        for statement in install(other.samples, other.dialect, anew=True):
            connection.execute(statement)
        connection.execute("COMMIT")
    other.check()
    assert other.migrate() == []
    assert other.shape() == expected


def test_what_would_be_done_can_be_done_by_hand(database: Database, tmp_path: Path) -> None:
    database.migrate()
    expected = database.shape()
    other = renewed(database, tmp_path)
    shipped = len(migrations(other.dialect))
    for to in (shipped, shipped + 1, None):
        with other.store() as store:
            text = store.migration_sql(to=to)
        assert "CONCURRENTLY" in text or other.dialect == "sqlite" or to is not None
        perform(other, text)
        if to is not None:
            with pytest.raises(SchemaOutdated):
                other.check()
    other.check()
    assert other.shape() == expected
    with other.store() as store:
        assert store.migration_sql() == ""


def test_the_rest_of_what_was_interrupted_can_be_done_by_hand(database: Database, tmp_path: Path) -> None:
    database.migrate()
    expected = database.shape()
    other = renewed(database, tmp_path)
    other.migrate(to=other.samples[-2].version)
    with fork_server(other.url) as start:
        assert start("before_migration_statement:kill@3") == (-9, [])
    with other.store() as store:
        perform(other, store.migration_sql())
    other.check()
    assert other.shape() == expected


def test_an_app_s_tables_come_from_the_statements(database: Database) -> None:
    with database.connection() as connection:
        for statement in install_sql(database.dialect):
            connection.execute(statement)
    with App(database.url) as app:
        app.check_schema()
        assert app.migrate() == []


def test_a_part_of_the_versions_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    known = tuple(Migration(n, f"number {n}", f"CREATE TABLE perdure.t{n} (id int);") for n in (1, 2, 3))
    monkeypatch.setattr("perdure.schema.migrations", lambda dialect: known)

    def made(after: int = 0, to: int | None = None) -> list[str]:
        statements = install_sql("sqlite", after=after, to=to)
        return [sql for sql in statements if sql.startswith("CREATE TABLE perdure_t")]

    tables = [f"CREATE TABLE perdure_t{n} (id int);" for n in (1, 2, 3)]
    assert made() == tables
    assert made(to=2) == tables[:2]
    assert made(after=1) == tables[1:]
    assert made(after=1, to=2) == tables[1:2]
    assert made(after=3) == install_sql("sqlite", after=3) == []
    for wrong in ({"to": 4}, {"after": 4}, {"to": 0}):
        with pytest.raises(Invalid, match="There is no migration"):
            made(**wrong)
    with pytest.raises(InvalidConfig):
        install_sql("mysql")  # type: ignore[arg-type]


def test_a_schema_may_have_any_name() -> None:
    statements = install_sql("postgres", schema='a "strange" one')
    assert statements[0] == 'CREATE SCHEMA IF NOT EXISTS "a ""strange"" one";'
    assert all('"a ""strange"" one"' in statement for statement in statements)


def test_a_text_names_no_transaction_around_what_is_online() -> None:
    plain = Migration(2, "plain", "CREATE TABLE perdure.a (id int);")
    online = Migration(3, "online", "-- online\nSELECT 1; SELECT 2;")
    text = script([Work(plain), Work(online, 1)], "postgres")
    assert [line for line in text.split("\n\n") if line and not line.startswith("INSERT")] == [
        "BEGIN;",
        'CREATE TABLE "perdure".a (id int);',
        "COMMIT;",
        "SELECT 2;",
    ]


def test_the_command_goes_as_far_as_it_is_told(url: str) -> None:
    newest = migrations("sqlite")[-1].version
    applied = json.loads(run("migrate", "--url", url, "--to", "1", "--json").stdout)
    assert applied == {"applied": [1], "version": 1}
    again = run("migrate", "--url", url, "--to", "1")
    assert again.stdout == "The schema is at version 1; there was nothing to do.\n"
    wrong = run("migrate", "--url", url, "--to", "99")
    assert (wrong.exit_code, wrong.stderr) == (
        2,
        f"Error: There is no migration 99; this version of perdure has 1 to {newest}. "
        "[schema.no_such_version]\n",
    )


def test_the_command_prints_what_it_would_do_and_does_it_not(url: str) -> None:
    printed = run("migrate", "--url", url, "--to", "1", "--sql")
    assert printed.exit_code == 0
    assert run("check", "--url", url).exit_code == 4
    assert json.loads(run("migrate", "--url", url, "--to", "1", "--sql", "--json").stdout) == {
        "sql": printed.stdout
    }
    database = Database(url)
    perform(database, printed.stdout)
    database.check(migrations(database.dialect)[:1])
    assert run("migrate", "--url", url, "--to", "1", "--sql").stdout == ""


def test_the_definition_can_be_asked_for_in_parts() -> None:
    newest = str(migrations("postgres")[-1].version)
    assert run("sql", "postgres", "--after", newest).stdout.split() == [
        "--",
        "perdure",
        "on",
        "postgres",
        "BEGIN;",
        "COMMIT;",
    ]
    assert run("sql", "postgres", "--to", newest).stdout == run("sql", "postgres").stdout
    assert run("sql", "postgres", "--to", "99").exit_code == 2
