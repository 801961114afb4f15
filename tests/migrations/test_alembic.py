"""Alembic beside perdure: it neither sees our tables nor drops them, and can make them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Column, Engine, Integer, MetaData, Table, create_engine, text
from sqlalchemy.pool import NullPool

from perdure import App
from perdure.contrib.alembic import Beside, include_name
from perdure.schema import install_sql
from tests.migrations.database import Database


def connect(database: Database, search_path: str = "public") -> Engine:
    options = {"options": f"-c search_path={search_path}"} if database.dialect == "postgres" else {}
    url = database.url.replace("postgresql://", "postgresql+psycopg://")
    return create_engine(url, poolclass=NullPool, connect_args=options)


def mine() -> MetaData:
    """What an application wants its own tables to be: one, and none that is there."""
    metadata = MetaData()
    Table("invoice", metadata, Column("id", Integer, primary_key=True))
    return metadata


def differences(engine: Engine, include_name: Callable[..., bool] | None = None) -> set[str]:
    """What autogenerate would write, over all schemas."""
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"include_schemas": True, "include_name": include_name}
        )
        return {f"{act} {thing.name}" for act, thing in flat(compare_metadata(context, mine()))}


def flat(found: Any) -> Iterator[tuple[str, Any]]:
    for one in found:
        if isinstance(one, tuple):
            yield one[0], one[1]


@pytest.mark.filterwarnings("ignore:Skipped unsupported reflection of expression-based index")
def test_autogenerate_drops_none_of_our_tables(database: Database) -> None:
    engine = connect(database)
    with App(database.url) as app:
        app.migrate()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE stale (id integer)"))
    without = differences(engine)
    prefix = "" if database.dialect == "postgres" else "perdure_"
    assert {f"remove_table {prefix}job", f"remove_table {prefix}migration"} < without, "it would"
    assert differences(engine, include_name) == {"add_table invoice", "remove_table stale"}


@pytest.mark.parametrize(
    ("schema", "search_path"), [("jobs", "public"), ("public", "public"), ("perdure", "perdure")]
)
def test_in_a_schema_that_others_share_only_our_tables_are_unseen(
    postgres: Database, schema: str, search_path: str
) -> None:
    engine = connect(postgres, search_path)
    with App(postgres.url, schema=schema) as app:
        app.migrate()
    with engine.begin() as connection:
        connection.execute(text(f"CREATE TABLE {schema}.stale (id integer)"))
    beside = Beside(None if schema == search_path else schema)
    assert differences(engine, beside) == {"add_table invoice", "remove_table stale"}


def test_a_revision_makes_our_tables(database: Database) -> None:
    with connect(database).begin() as connection:
        operations = Operations(MigrationContext.configure(connection))
        for statement in install_sql(database.dialect, to=1):
            operations.execute(statement)
    with App(database.url) as app:
        app.migrate()
        app.check_schema()
        assert app.task(name="x")(lambda: None).enqueue().state == "ready"
