"""The check and the migration refuse a history that does not fit, and change nothing."""

from __future__ import annotations

import pytest

from perdure.errors import (
    SchemaChanged,
    SchemaDirty,
    SchemaError,
    SchemaForeign,
    SchemaNewer,
)
from perdure.store.schema.files import Migration, migrations
from tests.migrations.database import Database
from tests.migrations.samples import online

UNFINISHED = "UPDATE perdure.migration SET finished = (1 = 0)"


@pytest.mark.parametrize(
    ("changes", "error", "code", "message"),
    [
        pytest.param(
            ["UPDATE perdure.migration SET checksum = 'other' WHERE version = 1"],
            SchemaChanged,
            "schema.changed",
            "0001 ledger was applied from a different file; reinstall perdure",
            id="changed",
        ),
        pytest.param(
            [f"{UNFINISHED} WHERE version = 1"],
            SchemaDirty,
            "schema.dirty",
            "0001 ledger was begun and never finished; restore",
            id="dirty",
        ),
        pytest.param(
            ["UPDATE perdure.migration SET version = 9999, name = 'from the future' WHERE version = 1"],
            SchemaNewer,
            "schema.newer",
            "9999 from the future, which this version of perdure lacks; upgrade",
            id="newer",
        ),
        pytest.param(
            ["DELETE FROM perdure.migration WHERE version = 1"],
            SchemaDirty,
            "schema.gap",
            "while others write, but 0001 ledger before it is not complete; restore",
            id="partial",
        ),
        pytest.param(
            ["DELETE FROM perdure.migration"],
            SchemaForeign,
            "schema.foreign",
            "or whose history was lost; restore",
            id="emptied",
        ),
        pytest.param(
            ["DROP TABLE perdure.migration"], SchemaForeign, "schema.foreign", "has a table", id="lost"
        ),
        pytest.param(
            ["DROP TABLE perdure.migration", "CREATE TABLE perdure.migration (id integer, name text)"],
            SchemaForeign,
            "schema.foreign",
            "migration that perdure did not make",
            id="foreign",
        ),
        pytest.param(
            [f"{UNFINISHED}, checksum = 'other' WHERE name = 'while others write'"],
            SchemaChanged,
            "schema.changed",
            "while others write was begun from a different file; finish it with the version that began it",
            id="changed while online",
        ),
    ],
)
def test_a_history_that_does_not_fit_is_refused(
    database: Database, changes: list[str], error: type[SchemaError], code: str, message: str
) -> None:
    database.migrate()
    for change in changes:
        database.run(change)
    before = database.run("SELECT * FROM perdure.more"), shape(database)
    for act in (database.check, database.migrate):
        with pytest.raises(error, match=message) as refused:
            act()
        assert refused.value.code == code
    assert (database.run("SELECT * FROM perdure.more"), shape(database)) == before


def test_an_older_version_refuses_a_newer_schema(database: Database) -> None:
    database.migrate()
    shipped = migrations(database.dialect)
    for act in (database.check, database.migrate):
        with pytest.raises(SchemaNewer, match="more things"):
            act(shipped)


def test_an_older_version_refuses_a_schema_that_a_newer_one_has_begun(database: Database) -> None:
    migration = online(database.dialect)
    database.migrate()
    database.run(
        f"{UNFINISHED}, checksum = '{migration.checksum_after(1)}' WHERE version = {migration.version}"
    )
    with pytest.raises(SchemaNewer, match="while others write"):
        database.check(database.samples[:-1])


def test_a_table_of_somebody_else_is_left_alone(database: Database) -> None:
    with database.connection() as connection:
        if database.dialect == "postgres":
            connection.execute("CREATE SCHEMA perdure")
            connection.execute("CREATE TABLE perdure.job (salary integer)")
        else:
            connection.execute("CREATE TABLE perdure_job (salary integer)")
    for act in (database.check, database.migrate):
        with pytest.raises(
            SchemaForeign, match=r"job that perdure did not make, or .* a schema or file of its own\.$"
        ):
            act()
    assert database.run("SELECT salary FROM perdure.job") == []


@pytest.mark.parametrize(
    "table",
    [
        "alembic_version (version_num text)",
        "django_migrations (id integer, app text, name text)",
        "migration (version integer, name text, checksum text, finished text)",
        "job (id integer)",
    ],
)
def test_histories_of_others_beside_ours_do_not_matter(database: Database, table: str) -> None:
    database.run(f"CREATE TABLE {table}")
    assert database.migrate() == [migration.version for migration in database.samples]
    database.check()


def test_what_comes_next_is_known_by_the_statements_that_were_run() -> None:
    """The rest of a file that was begun may change; the statements that were run may not."""
    from perdure.store.schema.pending import outstanding

    begun = Migration(1, "x", "-- online\nSELECT 1; SELECT 2; SELECT 3;")
    row = (1, "x", begun.checksum_after(2), False)
    mended = begun._replace(text="-- online\nSELECT 1; SELECT 2; SELECT 4; SELECT 5;")
    for migration in (begun, mended):
        assert [work.done for work in outstanding([row], [migration])] == [2]
    with pytest.raises(SchemaChanged):
        outstanding([row], [begun._replace(text="-- online\nSELECT 1; SELECT 7; SELECT 3;")])


def shape(database: Database) -> list[tuple[object, ...]]:
    """Without a look at the history: that may not be ours."""
    if database.dialect == "sqlite":
        return database.run("SELECT name, sql FROM sqlite_master ORDER BY name")
    return database.run(
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'perdure' ORDER BY 1, 2"
    )
