"""Operations on the connections of every driver, and the refused states of a connection with their codes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from perdure.errors import InternalError, Invalid, Refused, SchemaMissing, StoreAway, UnsupportedConnection
from perdure.model.time_text import FIRST, LAST
from perdure.ops.op import Op, Operation, announce, ask, ask_all, operation
from perdure.store.borrowed import join
from perdure.store.postgres.store import PostgresStore
from perdure.store.sqlite.store import SqliteStore
from perdure.store.store import Store
from tests.conn.caller import Caller
from tests.conn.drivers import POSTGRES, SQLITE
from tests.harness.processes import run_script
from tests.postgres import with_database
from tests.store.things import (
    insert,
    insert_and_refuse,
    insert_in_steps,
    insert_two,
    insert_without_end,
    read,
    run,
)

DRIVERS = {**SQLITE, **POSTGRES}
MAIL = frozenset({"queue/mail"})
NOON = 1_000_000_000_000_001

on_postgres = pytest.mark.parametrize("driver", POSTGRES, indirect=True)
on_sqlite = pytest.mark.parametrize("driver", SQLITE, indirect=True)
on_one_of_each_kind = pytest.mark.parametrize(
    "driver", ["sqlite3", "psycopg", "psycopg, async"], indirect=True
)
PLAIN = [name for name in DRIVERS if "Session" not in name and "session" not in name and "Django" not in name]


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def any_store(driver: str, request: pytest.FixtureRequest) -> Store:
    chosen: Store = request.getfixturevalue("sqlite_store" if driver in SQLITE else "store")
    return chosen


@pytest.fixture
def caller(driver: str, any_store: Store, request: pytest.FixtureRequest) -> Iterator[Caller]:
    url = request.getfixturevalue("sqlite_url" if driver in SQLITE else "postgres_url")
    caller = DRIVERS[driver](url)
    yield caller
    caller.ends()


def perform(caller: Caller, store: Store, *args: Any, **options: Any) -> Any:
    verb = join.aperform if caller.mode == "async" else join.perform
    return caller.does(lambda: verb(caller.conn, store, *args, **options))


def refuses(caller: Caller, store: Store, code: str) -> None:
    with pytest.raises(UnsupportedConnection) as refused:
        perform(caller, store, insert, "refused")
    assert refused.value.code == code


def say(caller: Caller, sql: str) -> None:
    caller.does(caller.say, sql)


# What does not depend on the driver is tested with one driver of each kind.


@on_one_of_each_kind
def test_it_commits_with_the_caller(caller: Caller, any_store: Store) -> None:
    assert perform(caller, any_store, insert, "a") == [("a",)]
    assert any_store.perform(read) == []
    caller.does(caller.commit)
    assert any_store.perform(read) == ["a"]


@on_one_of_each_kind
def test_it_vanishes_with_the_caller(caller: Caller, any_store: Store) -> None:
    say(caller, "INSERT INTO perdure_thing (id) VALUES ('theirs')")
    perform(caller, any_store, insert, "a")
    caller.does(caller.rollback)
    assert any_store.perform(read) == []


@on_one_of_each_kind
@pytest.mark.parametrize("both", [insert_two, insert_in_steps], ids=lambda operation: operation.name)
def test_it_sees_and_is_seen_by_the_caller(
    caller: Caller, any_store: Store, both: Operation[..., Any]
) -> None:
    say(caller, "INSERT INTO perdure_thing (id) VALUES ('theirs')")
    perform(caller, any_store, both, "a", "b")
    say(caller, "UPDATE perdure_thing SET id = 'changed' WHERE id = 'b'")
    assert perform(caller, any_store, read) == ["a", "changed", "theirs"]
    caller.does(caller.commit)
    assert any_store.perform(read) == ["a", "changed", "theirs"]


@on_one_of_each_kind
@pytest.mark.parametrize("both", [insert_two, insert_in_steps], ids=lambda operation: operation.name)
def test_an_error_undoes_the_operation_alone(
    caller: Caller, any_store: Store, both: Operation[..., Any]
) -> None:
    say(caller, "INSERT INTO perdure_thing (id) VALUES ('b')")
    with pytest.raises(InternalError) as refused:
        perform(caller, any_store, both, "a", "b")
    assert refused.value.code == "store.constraint"
    assert refused.value.__cause__ is None
    assert refused.value.__context__ is None
    assert perform(caller, any_store, read) == ["b"]
    perform(caller, any_store, insert, "c")
    caller.does(caller.commit)
    assert any_store.perform(read) == ["b", "c"]


@on_one_of_each_kind
def test_a_refusal_undoes_the_operation_alone(caller: Caller, any_store: Store) -> None:
    with pytest.raises(Refused, match="Not today"):  # as the first statement of all
        perform(caller, any_store, insert_and_refuse, "a")
    say(caller, "INSERT INTO perdure_thing (id) VALUES ('theirs')")
    with pytest.raises(Refused, match="Not today"):  # and in the middle
        perform(caller, any_store, insert_and_refuse, "a")
    perform(caller, any_store, insert_without_end, "b")
    caller.does(caller.commit)
    assert any_store.perform(read) == ["b", "theirs"]


@on_one_of_each_kind
def test_a_savepoint_of_the_same_name_is_the_caller_s(caller: Caller, any_store: Store) -> None:
    say(caller, "INSERT INTO perdure_thing (id) VALUES ('theirs')")
    say(caller, "SAVEPOINT perdure")
    perform(caller, any_store, insert, "a")
    say(caller, "ROLLBACK TO SAVEPOINT perdure")
    perform(caller, any_store, insert, "b")
    say(caller, "RELEASE SAVEPOINT perdure")
    caller.does(caller.commit)
    assert any_store.perform(read) == ["b", "theirs"]


@on_one_of_each_kind
def test_an_operation_that_asks_nothing_is_fine(caller: Caller, any_store: Store) -> None:
    @operation("write")
    def nothing() -> Op[str]:
        yield from announce(frozenset())
        return "done"

    @operation("write")
    def empty_end() -> Op[str]:
        yield from ask("insert", id="a", note=None)
        yield from ask_all(final=True, wake=MAIL)
        return "done"

    assert perform(caller, any_store, nothing) == "done"
    assert perform(caller, any_store, empty_end) == "done"
    caller.does(caller.commit)
    assert any_store.perform(read) == ["a"]


@on_one_of_each_kind
def test_listeners_in_the_process_are_told_at_once(caller: Caller, any_store: Store) -> None:
    heard: list[frozenset[str]] = []
    any_store.subscribe(heard.append)
    with pytest.raises(Refused):
        perform(caller, any_store, insert_and_refuse, "a", wake=MAIL)
    assert heard == []
    perform(caller, any_store, insert, "a", wake=MAIL)
    perform(caller, any_store, insert_without_end, "b", wake=MAIL)
    assert heard == [MAIL, MAIL]


@on_one_of_each_kind
def test_a_missing_schema_is_named(caller: Caller, any_store: Store) -> None:
    say(caller, "DROP TABLE perdure_thing")
    with pytest.raises(SchemaMissing):
        perform(caller, any_store, insert, "a")


@on_one_of_each_kind
def test_a_sync_connection_is_refused_by_async_methods_and_the_reverse(
    caller: Caller, any_store: Store
) -> None:
    with pytest.raises(UnsupportedConnection, match=r"await the method|asyncio\.to_thread") as refused:
        caller.wrong_verb(join, "perform", caller.conn, any_store, insert, "a")
    assert refused.value.code == "conn.wrong_mode"


@on_one_of_each_kind
def test_the_database_must_fit(caller: Caller, any_store: Store, request: pytest.FixtureRequest) -> None:
    other = "store" if any_store.dialect == "sqlite" else "sqlite_store"
    refuses(caller, request.getfixturevalue(other), "conn.other_database")


@pytest.mark.parametrize("thing", [object(), "postgresql://x", None, sqlite3])
def test_what_is_no_connection_is_refused(sqlite_store: SqliteStore, thing: object) -> None:
    with pytest.raises(UnsupportedConnection, match="cannot join"):
        join.perform(thing, sqlite_store, insert, "a")


def test_a_driver_that_is_not_known_is_named(sqlite_store: SqliteStore) -> None:
    """As SQLAlchemy over another database would have it."""

    class Connection:
        __module__ = "pymysql.connections"

    with pytest.raises(UnsupportedConnection, match="pymysql's ") as refused:
        join.perform(Connection(), sqlite_store, insert, "a")
    assert refused.value.code == "conn.unsupported"


def test_no_driver_is_imported_to_look_at_a_connection() -> None:
    libraries = {package for package, _ in (*join.ADAPTERS, *join.WRAPPERS)}
    script = f"import sys; import perdure.store.borrowed.join; print({libraries} & set(sys.modules))"
    assert run_script(script) == "set()\n"


# What differs between drivers.


def test_rows_and_times_are_what_stores_return(
    caller: Caller, any_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(any_store, "_clock", lambda: NOON)
    perform(caller, any_store, insert, "a", "100 % ä'\\\" :x $1 ?")
    perform(caller, any_store, insert, "b", "")
    assert perform(caller, any_store, run, "read") == [("a", "100 % ä'\\\" :x $1 ?"), ("b", "")]
    assert perform(caller, any_store, run, "read_times") == [(NOON,), (NOON,)]


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "pg8000", "asyncpg"], indirect=True)
def test_times_that_no_datetime_holds_are_its_first_and_last(
    caller: Caller, any_store: Store, driver: str
) -> None:
    times = {"-infinity": FIRST, "1969-12-31 23:59:59.5+00": -500_000, "infinity": LAST}
    if driver != "asyncpg":  # which itself refuses to read these
        times |= {"0044-03-15 12:00+00 BC": FIRST, "12000-01-01 00:00+00": LAST}
    for n, time in enumerate(times):
        caller.does(caller.say, f"INSERT INTO perdure_thing (id, at) VALUES ('{n}', '{time}')")
    assert perform(caller, any_store, run, "read_times") == [(at,) for at in times.values()]


@on_postgres
def test_values_that_postgresql_cannot_store_are_refused(caller: Caller, any_store: Store) -> None:
    for bad in ("a\0b", "a\ud800b"):
        with pytest.raises(Invalid) as refused:
            perform(caller, any_store, insert, bad)
        assert refused.value.code == "store.bad_value"
    perform(caller, any_store, insert, "b")
    caller.does(caller.commit)
    assert any_store.perform(read) == ["b"]


@on_postgres
def test_topics_arrive_when_the_caller_commits(
    caller: Caller, any_store: Store, admin: psycopg.Connection[Any]
) -> None:
    admin.execute("LISTEN perdure")
    perform(caller, any_store, insert, "a", wake=MAIL)
    perform(caller, any_store, insert_without_end, "b", wake=frozenset({"queue/late"}))
    with pytest.raises(Refused):
        perform(caller, any_store, insert_and_refuse, "c", wake=frozenset({"queue/never"}))
    assert list(admin.notifies(timeout=0)) == []
    caller.does(caller.commit)
    heard = [note.payload for note in admin.notifies(timeout=10, stop_after=2)]
    assert heard == ["queue/mail", "queue/late"]


@pytest.mark.parametrize("driver", PLAIN, indirect=True)
def test_a_closed_connection_is_refused(caller: Caller, any_store: Store) -> None:
    caller.closes()
    refuses(caller, any_store, "conn.closed")


@on_postgres
def test_a_failed_transaction_is_refused(caller: Caller, any_store: Store) -> None:
    with pytest.raises(Exception, match="zero"):
        caller.does(caller.say, "SELECT 1 / 0")
    refuses(caller, any_store, "conn.aborted")


def test_a_connection_to_another_database_is_refused(
    caller: Caller, any_store: Store, tmp_path: Any, postgres_server: str
) -> None:
    other: Store
    if any_store.dialect == "sqlite":
        other = SqliteStore(str(tmp_path / "other.db"))
    else:
        other = PostgresStore(with_database(postgres_server, "another"))
    refuses(caller, other, "conn.other_database")
    other.close()
    perform(caller, any_store, insert, "a")


@on_postgres
def test_a_lost_connection_is_away(caller: Caller, any_store: Store, admin: psycopg.Connection[Any]) -> None:
    caller.does(caller.say, "SELECT 1")
    caller.spoiled = True
    others = (
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = current_database()"
    )
    admin.execute(f"{others} AND pid <> pg_backend_pid() AND backend_type = 'client backend'".encode())
    with pytest.raises((StoreAway, UnsupportedConnection)) as refused:
        perform(caller, any_store, insert, "a")
    assert refused.value.code in ("store.away", "conn.closed")


@on_sqlite
def test_an_old_sqlite_does_not_checkpoint_by_itself(caller: Caller, any_store: Store) -> None:
    @operation("read")
    def pages() -> Op[int]:
        [(number,)] = yield from ask("pages")
        return int(number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(any_store, "_given", {**any_store.statements, "pages": "PRAGMA wal_autocheckpoint"})
        perform(caller, any_store, insert, "a")
        assert bool(perform(caller, any_store, pages)) is (sqlite3.sqlite_version_info >= (3, 51, 3))
