"""Migrations are applied once, in order. A failed one leaves nothing behind, and the error says where it failed."""

from __future__ import annotations

import psycopg
import pytest

from perdure.app import App
from perdure.errors import Invalid, PerdureError, SchemaMissing, SchemaOutdated, StoreBusy, StoreReadOnly
from perdure.model.backoff import Backoff
from perdure.store.postgres.migrate import _spell
from perdure.store.postgres.store import PostgresStore
from perdure.store.schema.files import Migration, migrations, split
from perdure.store.statements import Dialect
from tests.migrations.database import Database
from tests.migrations.samples import online, plain

WEIRD = 'we"ird x;--'


def test_a_new_database_gets_everything_and_then_nothing(database: Database) -> None:
    shipped = migrations(database.dialect)
    with pytest.raises(SchemaMissing, match=r"call app\.migrate\(\)"):
        database.check(shipped)
    assert database.migrate(shipped) == [migration.version for migration in shipped]
    assert database.migrate(shipped) == []
    database.check(shipped)
    assert database.run("SELECT count(*) FROM perdure.job") == [(0,)]


def test_the_history_tells_what_was_applied(database: Database) -> None:
    database.migrate()
    history = database.run(
        "SELECT version, name, checksum, finished, applied_at FROM perdure.migration ORDER BY 1"
    )
    assert [row[:3] for row in history] == [
        (migration.version, migration.name, migration.checksum) for migration in database.samples
    ]
    assert all(finished and applied for *_, finished, applied in history)
    assert migrations(database.dialect)[0].name == "ledger"


def test_what_is_missing_is_named_and_applied(database: Database) -> None:
    shipped, second = migrations(database.dialect), plain(database.dialect)
    database.migrate(shipped)
    known = [*shipped, second]
    with pytest.raises(SchemaOutdated, match=f"lacks migration {second}; call app"):
        database.check(known)
    assert database.migrate(known) == [second.version]
    database.check(known)


def test_it_goes_as_far_as_it_is_told(database: Database) -> None:
    *_, second, third = database.samples
    assert database.migrate(to=1) == [1]
    assert database.migrate(to=second.version) == list(range(2, second.version + 1))
    assert database.migrate(to=1) == []
    with pytest.raises(SchemaOutdated, match=f"lacks migration {third}"):
        database.check()
    for wrong in (0, -1, 99, 2**70):
        with pytest.raises(Invalid, match="There is no migration") as refused:
            database.migrate(to=wrong)
        assert refused.value.code == "schema.no_such_version"
    assert database.migrate() == [third.version]


@pytest.mark.parametrize("is_online", [False, True])
def test_a_migration_that_fails_says_where_and_leaves_nothing_of_that_transaction(
    database: Database, is_online: bool
) -> None:
    shipped, second = migrations(database.dialect), plain(database.dialect)
    broken = second._replace(
        text="-- online\n" * is_online + second.text + "CREATE TABLE perdure.more (id integer);"
    )
    database.migrate(shipped)
    with database.store([*shipped, broken]) as store, pytest.raises(PerdureError) as refused:
        store.migrate()
    assert refused.value.code == "store.refused"
    assert refused.value.__notes__ == [f"In migration {broken}, statement 4 of 4."]
    if not is_online:
        assert [version for version, _ in database.history()] == [one.version for one in shipped]
        with pytest.raises(SchemaOutdated, match="lacks migration"):
            database.check([*shipped, broken])
        return
    with pytest.raises(SchemaOutdated, match="after 3 of 4 statements"):
        database.check([*shipped, broken])
    # A later release repairs the statement that failed; those before it are not run again.
    mended = broken._replace(
        text=broken.text.replace("TABLE perdure.more (id integer);", "TABLE perdure.most (id integer);")
    )
    assert database.migrate([*shipped, mended]) == [broken.version]


@pytest.mark.parametrize("schema", ["perdure", WEIRD, "100%", ":now", "Ä"])
def test_a_schema_may_have_any_name(postgres_url: str, schema: str) -> None:
    known = [*migrations("postgres"), plain("postgres"), online("postgres")]
    store = PostgresStore(postgres_url, schema=schema, migrations=known)
    with pytest.raises(SchemaMissing):
        store.check_schema()
    assert store.migrate() == [migration.version for migration in known]
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


def test_a_table_s_lock_is_not_waited_for_long(postgres: Database) -> None:
    """Others that need the table would wait behind us."""
    shipped = migrations("postgres")
    alter = Migration(len(shipped) + 1, "one more", "ALTER TABLE perdure.job ADD COLUMN more text;")
    postgres.migrate(shipped)
    with postgres.store([*shipped, alter], patience=0) as store, psycopg.connect(postgres.url) as holder:
        holder.execute("LOCK TABLE perdure.job IN ACCESS SHARE MODE")
        with pytest.raises(StoreBusy):
            store.migrate()


def test_parameters_are_found_outside_quotes_only() -> None:
    assert _spell("""SELECT :a, x::text, ':b', "x:c %" FROM "we""ird :d" WHERE 5 % :e""") == (
        """SELECT %(a)s, x::text, ':b', "x:c %%" FROM "we""ird :d" WHERE 5 %% %(e)s"""
    )


def test_a_text_is_split_where_a_statement_ends() -> None:
    pieces = [
        "-- it's; so\nCREATE TABLE a (b text DEFAULT ';'';', \"c;\" int);",
        " /* ;\n; */ CREATE FUNCTION f() AS $x$ a; $$ ; $x$;",
        "\nCREATE TRIGGER t BEGIN SELECT CASE 1 WHEN 1 THEN 2 END; SELECT 2; END;",
        " SELECT 1; -- the; end\n",
    ]
    assert split("".join(pieces)) == pieces
    assert split("SELECT 1") == ["SELECT 1"]
    assert split("") == []


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_the_statements_of_a_migration_are_its_text(dialect: Dialect) -> None:
    for migration in [*migrations(dialect), plain(dialect), online(dialect)]:
        assert "".join(migration.statements) == migration.text
        assert migration.checksum_after(len(migration.statements)) == migration.checksum


def test_both_databases_have_the_same_migrations() -> None:
    titles = [[str(migration) for migration in migrations(dialect)] for dialect in ("sqlite", "postgres")]
    assert titles[0] == titles[1]
    for dialect in ("sqlite", "postgres"):
        versions = [migration.version for migration in migrations(dialect)]
        assert versions == list(range(1, len(versions) + 1))


def test_a_back_off_from_before_queue_settings_counts_as_an_edit(database: Database) -> None:
    shipped = migrations(database.dialect)
    (this,) = [migration for migration in shipped if migration.name == "queue settings"]
    database.migrate(shipped[: this.version - 1])
    backoff = """'{"base": 7, "cap": 8}'"""
    database.run(f"INSERT INTO perdure.queue (name, backoff) VALUES ('mail', {backoff}), ('other', NULL)")
    with App(database.url) as app:
        app.migrate()
        app.queue("mail", backoff=1, timeout=60)
        app.queue("other", backoff=2)
        app.save_tasks()
        mail, other = app.list_queues()
        assert (mail.backoff, mail.timeout) == (Backoff(7, 8), 60.0)
        assert other.backoff == Backoff(2, 900)
