"""Constraints and indexes on tables in use: others write meanwhile, and an interrupted build is cleaned up."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from perdure.errors import InternalError, SchemaOutdated
from perdure.store.postgres.migrate import target
from perdure.store.schema.files import Migration, migrations
from tests.harness.processes import tell
from tests.harness.waiting import until
from tests.migrations.database import Database, end, fork_server, start
from tests.migrations.samples import online
from tests.migrations.test_together import killed_at_the_end, visitors

JOB = (
    "INSERT INTO perdure.job (id, task, queue, payload, state, priority, max_attempts, run_at, created_at)"
    " VALUES (gen_random_uuid(), 't', '{queue}', '{{}}', 'ready', 0, 1, now(), now())"
)
HERE = "FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' AND query LIKE"
BUILDER = f"SELECT pid {HERE} 'CREATE INDEX CONCURRENTLY%'"
INDEX = (
    "SELECT indexrelid, indisvalid FROM pg_index"
    " WHERE indexrelid IN (SELECT oid FROM pg_class WHERE relname = 'job_tenant')"
)


@pytest.fixture
def before(postgres: Database) -> Database:
    """Where the online migration is next."""
    postgres.migrate(to=online("postgres").version - 1)
    return postgres


@pytest.fixture
def writer(before: Database) -> Iterator[psycopg.Connection[Any]]:
    """Another transaction is still open; the index is next, and will wait for it."""
    with fork_server(before.url) as run:
        assert run("before_migration_statement:kill@4") == (-9, [])
    with psycopg.connect(before.url) as writer:
        writer.execute(JOB.format(queue="q").encode())
        yield writer


@pytest.fixture
def builder(before: Database, writer: psycopg.Connection[Any]) -> Iterator[subprocess.Popen[str]]:
    """A process that builds the index."""
    process = start(before.url)
    with killed_at_the_end(process):
        tell(process)
        until(lambda: before.run(BUILDER))
        yield process


def test_others_write_while_an_index_is_built(
    before: Database, writer: psycopg.Connection[Any], builder: subprocess.Popen[str]
) -> None:
    before.run(JOB.format(queue="other"))
    with pytest.raises(SchemaOutdated, match="is under way, or was interrupted, after 3 of 6 statements"):
        before.check()
    writer.commit()
    assert end(builder) == (0, [online("postgres").version])
    assert before.run("SELECT count(*) FROM perdure.job") == [(2,)]
    before.check()


def test_an_index_whose_builder_was_killed_is_waited_for(
    before: Database, writer: psycopg.Connection[Any], builder: subprocess.Popen[str]
) -> None:
    """The server builds on: the next process neither disturbs it nor builds another."""
    builder.kill()
    assert end(builder)[0] == -9
    ((index, valid),) = before.run(INDEX)
    assert not valid
    next_one = start(before.url)
    with killed_at_the_end(next_one):
        tell(next_one)
        until(
            lambda: before.run(
                "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
                " AND query LIKE '%ShareUpdateExclusiveLock%'"
            )
        )
        assert before.run(BUILDER)
        writer.commit()
        assert end(next_one) == (0, [online("postgres").version])
    assert before.run(INDEX) == [(index, True)]
    assert before.run("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == [(0,)]
    before.check()


def test_an_index_that_was_left_half_built_is_dropped_and_built_anew(
    before: Database, writer: psycopg.Connection[Any], builder: subprocess.Popen[str]
) -> None:
    builder.kill()
    assert end(builder)[0] == -9
    before.run(f"SELECT pg_terminate_backend(pid) FROM ({BUILDER}) AS builder")
    until(lambda: not before.run(BUILDER))
    ((left, valid),) = before.run(INDEX)
    assert not valid
    writer.commit()
    assert before.migrate() == [online("postgres").version]
    ((index, valid),) = before.run(INDEX)
    assert valid
    assert index != left
    before.check()


def test_a_builder_that_lost_its_turn_records_nothing_and_looks_again(
    before: Database, writer: psycopg.Connection[Any], builder: subprocess.Popen[str]
) -> None:
    """Its other connection was cut while the index was built."""
    ((index, _),) = before.run(INDEX)
    before.run(
        "SELECT pg_terminate_backend(pid) FROM pg_locks JOIN pg_database ON database = pg_database.oid"
        " WHERE locktype = 'advisory' AND datname = current_database()"
    )
    writer.commit()
    assert end(builder) == (0, [online("postgres").version])
    assert before.run(INDEX) == [(index, True)]
    before.check()


def test_rows_that_break_a_constraint_are_told_and_once_mended_it_is_validated(before: Database) -> None:
    before.run(JOB.format(queue="q" * 501))
    for _ in range(2):
        with pytest.raises(InternalError) as refused:
            before.migrate()
        assert refused.value.code == "store.constraint"
        assert refused.value.__notes__ == [f"In migration {online('postgres')}, statement 2 of 6."]
    # It holds for new rows already.
    with pytest.raises(psycopg.errors.CheckViolation):
        before.run(JOB.format(queue="q" * 501))
    assert constraint(before) == [(False,)]
    before.run("UPDATE perdure.job SET queue = 'q'")
    assert before.migrate() == [online("postgres").version]
    assert constraint(before) == [(True,)]


def constraint(database: Database) -> list[tuple[object, ...]]:
    return database.run("SELECT convalidated FROM pg_constraint WHERE conname = 'queue_is_short'")


def test_rows_that_break_a_unique_index_are_told_and_once_mended_it_is_built(before: Database) -> None:
    before.run("INSERT INTO perdure.more VALUES (2, 'a;b', 0)")
    for _ in range(2):
        with pytest.raises(InternalError) as refused:
            before.migrate()
        assert refused.value.code == "store.constraint"
        assert refused.value.__notes__ == [f"In migration {online('postgres')}, statement 6 of 6."]
    before.run("DELETE FROM perdure.more WHERE id = 2")
    assert before.migrate() == [online("postgres").version]
    with pytest.raises(psycopg.errors.UniqueViolation):
        before.run("INSERT INTO perdure.more VALUES (2, 'a;b', 0)")


def test_on_sqlite_too_rows_that_break_a_unique_index_are_told(sqlite_url: str) -> None:
    database = Database(sqlite_url)
    migration = online("sqlite")
    database.migrate(to=migration.version - 1)
    database.run("INSERT INTO perdure.more VALUES (2, 'a;b', 0, NULL)")
    with pytest.raises(InternalError) as refused:
        database.migrate()
    assert refused.value.__notes__ == [f"In migration {migration}, statement 5 of 5."]
    database.run("DELETE FROM perdure.more WHERE id = 2")
    assert database.migrate() == [migration.version]
    assert database.run("SELECT size FROM perdure.more") == [(1,)]


def test_on_sqlite_others_write_between_two_statements(sqlite_url: str) -> None:
    database = Database(sqlite_url)
    database.migrate(to=online("sqlite").version - 1)
    process = start(database.url, failpoint="before_migration_statement:sleep=600@2")
    with killed_at_the_end(process):
        tell(process)
        until(lambda: database.history()[-1] == (online("sqlite").version, 0))
    database.run("INSERT INTO perdure.more VALUES (2, 'x', 5, NULL, NULL)")
    database.migrate()
    assert database.run("SELECT size FROM perdure.more ORDER BY id") == [(1,), (6,)]


def test_only_indexes_may_be_said_concurrently(postgres: Database) -> None:
    shipped = migrations("postgres")
    wrong = Migration(len(shipped) + 1, "wrong", "-- online\nREINDEX TABLE CONCURRENTLY perdure.job;")
    postgres.migrate(shipped)
    with pytest.raises(InternalError, match="Only CREATE INDEX and DROP INDEX"):
        postgres.migrate([*shipped, wrong])


def test_whoever_waits_for_a_turn_holds_no_index_up(before: Database) -> None:
    """Its builder waits for all who have a snapshot, also for those who wait for the builder's own turn."""
    process = start(before.url)
    with (
        killed_at_the_end(process),
        target(before.url, "perdure") as database,
        database.exclusive_transaction(),
    ):
        tell(process)
        until(lambda: len(visitors(before)) == 2)
        database.run_online("CREATE INDEX CONCURRENTLY more_size ON perdure.more (size);")
