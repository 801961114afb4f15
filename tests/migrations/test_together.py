"""Processes that migrate at once take turns; a turn ends with the process that has it."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg
import pytest

from perdure.errors import StoreBusy
from perdure.store.postgres import migrate
from perdure.store.postgres.migrate import PostgresTarget, target
from perdure.store.sqlite.migrate import SqliteTarget
from tests.harness.processes import tell
from tests.harness.waiting import until
from tests.migrations.database import Database, end, start

HOLDS_THE_TURN = "before_migration_statement:sleep=600@3"


@contextmanager
def killed_at_the_end(*processes: subprocess.Popen[str]) -> Iterator[None]:
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_processes_that_start_at_once_do_everything_once(database: Database) -> None:
    processes = [start(database.url) for _ in range(4)]
    with killed_at_the_end(*processes):
        for process in processes:
            tell(process)
        outcomes = [end(process) for process in processes]
    assert [code for code, _ in outcomes] == [0] * 4
    assert sorted(version for _, versions in outcomes for version in versions) == [
        migration.version for migration in database.samples
    ]
    database.check()
    # Added once, by an update that counts.
    assert database.run("SELECT size FROM perdure.more") == [(1,)]


def test_whoever_has_the_turn_is_killed_and_the_next_takes_it(database: Database) -> None:
    holder, next_one = start(database.url, failpoint=HOLDS_THE_TURN), start(database.url)
    with killed_at_the_end(holder, next_one):
        tell(holder)
        until(lambda: has_turn(database))
        tell(next_one)
        if database.dialect == "postgres":
            until(lambda: len(visitors(database)) == 2)
        assert next_one.poll() is None
        holder.send_signal(signal.SIGKILL)
        assert end(holder)[0] == -9
        assert end(next_one) == (0, [migration.version for migration in database.samples])
    database.check()


def test_a_backend_that_was_ended_while_it_had_the_turn_is_no_loss(postgres: Database) -> None:
    holder = start(postgres.url, failpoint="before_migration_statement:sleep=1@3")
    with killed_at_the_end(holder):
        tell(holder)
        until(lambda: has_turn(postgres))
        postgres.run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        assert end(holder) == (0, [migration.version for migration in postgres.samples])


def test_nobody_waits_for_a_turn_for_ever(postgres: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate, "_LONGEST_WAIT", 0.2)
    holder = start(postgres.url, failpoint=HOLDS_THE_TURN)
    with killed_at_the_end(holder):
        tell(holder)
        until(lambda: has_turn(postgres))
        with pytest.raises(StoreBusy, match="Another process has been migrating"):
            postgres.migrate()


def test_no_lock_is_left(postgres: Database) -> None:
    postgres.migrate()
    until(lambda: visitors(postgres) == [])
    assert not has_turn(postgres)


def test_on_postgresql_the_migration_s_error_wins_over_the_unlock_s(postgres: Database) -> None:
    postgres.migrate()
    with target(postgres.url, "perdure") as database, pytest.raises(psycopg.errors.DivisionByZero):
        fail_and_be_cut(postgres, database)
    with target(postgres.url, "perdure") as database, pytest.raises(psycopg.errors.UniqueViolation):
        fail_online_and_be_cut(postgres, database)
    with (
        target(postgres.url, "perdure") as database,
        pytest.raises(psycopg.OperationalError),
        database.exclusive_transaction(),
    ):
        end_backend(postgres, database)


def fail_and_be_cut(postgres: Database, database: PostgresTarget) -> None:
    with database.exclusive_transaction():
        try:
            database.run("SELECT 1 / 0")
        finally:
            end_backend(postgres, database)


def fail_online_and_be_cut(postgres: Database, database: PostgresTarget) -> None:
    """What is built ends the connection that has the turn, and breaks."""
    postgres.run("INSERT INTO perdure.more VALUES (2, 'x', 7), (3, 'y', 7)")
    postgres.run(
        "CREATE FUNCTION perdure.cut(size integer) RETURNS integer IMMUTABLE RETURN CASE WHEN"
        f" pg_catalog.pg_terminate_backend({pid(database)}) THEN size ELSE size END"
    )
    with database.exclusive_transaction():
        database.run_online("CREATE UNIQUE INDEX CONCURRENTLY cut ON perdure.more (perdure.cut(size));")


def test_on_sqlite_the_migration_s_error_wins_over_the_unlock_s() -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    with pytest.raises(ZeroDivisionError), SqliteTarget(connection).exclusive_transaction():  # noqa: PT012 - one after the other
        connection.close()
        1 / 0  # noqa: B018
    connection = sqlite3.connect(":memory:", isolation_level=None)
    with pytest.raises(sqlite3.ProgrammingError), SqliteTarget(connection).exclusive_transaction():
        connection.close()


def end_backend(postgres: Database, database: PostgresTarget) -> None:
    """The connection that has the turn is cut."""
    postgres.run(f"SELECT pg_terminate_backend({pid(database)})")
    until(lambda: pid(database) not in visitors(postgres))


def pid(database: PostgresTarget) -> int:
    return database._connection.info.backend_pid


def has_turn(database: Database) -> bool:
    """Whether another process migrates now."""
    if database.dialect == "postgres":
        locks = database.run(
            "SELECT count(*) FROM pg_locks JOIN pg_database ON database = pg_database.oid"
            " WHERE locktype = 'advisory' AND datname = current_database()"
        )
        return locks != [(0,)]
    with closing(
        sqlite3.connect(database.url.removeprefix("sqlite:///"), isolation_level=None, timeout=0)
    ) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        return False


def visitors(postgres: Database) -> list[int]:
    """The backends of others."""
    found = postgres.run(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
        " AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
    )
    return [pid for (pid,) in found]
