"""Operations on the caller's own connection commit with it, vanish with it, and leave it as it was."""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row, tuple_row

from perdure.errors import (
    InternalError,
    Invalid,
    Refused,
    SchemaMissing,
    StoreAway,
    StoreBusy,
    StoreReadOnly,
    UnsupportedConnection,
)
from perdure.ops.op import Op, Operation, Query, announce, ask, ask_all, operation
from perdure.store.borrowed import join
from perdure.store.postgres.store import PostgresStore
from perdure.store.sqlite.store import SqliteStore
from perdure.store.store import Store
from tests.postgres import with_database
from tests.store.things import (
    TABLE,
    TIMES,
    insert,
    insert_and_refuse,
    insert_in_steps,
    insert_two,
    insert_without_end,
    postgres_store,
    read,
    run,
    statements,
)
from tests.store.waiting import auntil

MAIL = frozenset({"queue/mail"})
NOON = 1_000_000_000_000_001


class Caller:
    """Somebody with a connection of their own and a transaction on it."""

    def __init__(self, connection: Any, store: Store) -> None:
        self.connection, self.store = connection, store

    async def perform(self, operation: Operation[..., Any], *args: Any, **kwargs: Any) -> Any:
        if isinstance(self.connection, psycopg.AsyncConnection):
            return await join.aperform(self.connection, self.store, operation, *args, **kwargs)
        return join.perform(self.connection, self.store, operation, *args, **kwargs)

    async def say(self, sql: str) -> Any:
        return await _done(self.connection.execute(sql))

    async def ids(self) -> list[str]:
        cursor = await self.say("SELECT id FROM perdure_thing ORDER BY id")
        return [row[0] for row in await _done(cursor.fetchall())]

    async def commit(self) -> None:
        await _done(self.connection.commit())

    async def rollback(self) -> None:
        await _done(self.connection.rollback())

    async def close(self) -> None:
        await _done(self.connection.close())


async def _done(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


@pytest.fixture
def sqlite_store(sqlite_url: str) -> Iterator[SqliteStore]:
    path = sqlite_url.removeprefix("sqlite:///")
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(TABLE.format(time=TIMES["sqlite"]))
    connection.close()
    store = SqliteStore(path, statements=statements("sqlite"))
    store.migrate()
    yield store
    store.close()


def sqlite_connection(store: SqliteStore, **options: Any) -> sqlite3.Connection:
    return sqlite3.connect(store._database.path, **options)


@pytest.fixture(params=["sqlite3", "psycopg", "psycopg async"])
async def caller(request: pytest.FixtureRequest) -> AsyncIterator[Caller]:
    if request.param == "sqlite3":
        sqlite_store: SqliteStore = request.getfixturevalue("sqlite_store")
        caller = Caller(sqlite_connection(sqlite_store), sqlite_store)
    else:
        store, url = request.getfixturevalue("store"), request.getfixturevalue("postgres_url")
        kind: Any = psycopg.AsyncConnection if "async" in request.param else psycopg.Connection
        caller = Caller(await _done(kind.connect(url)), store)
    yield caller
    await caller.close()


async def test_it_commits_with_the_caller(caller: Caller) -> None:
    assert await caller.perform(insert, "a") == [("a",)]
    assert caller.store.perform(read) == []
    await caller.commit()
    assert caller.store.perform(read) == ["a"]


async def test_it_vanishes_with_the_caller(caller: Caller) -> None:
    await caller.say("INSERT INTO perdure_thing (id) VALUES ('theirs')")
    await caller.perform(insert, "a")
    await caller.rollback()
    assert caller.store.perform(read) == []


@pytest.mark.parametrize("both", [insert_two, insert_in_steps], ids=lambda operation: operation.name)
async def test_it_sees_and_is_seen_by_the_caller(caller: Caller, both: Operation[..., Any]) -> None:
    await caller.say("INSERT INTO perdure_thing (id) VALUES ('theirs')")
    await caller.perform(both, "a", "b")
    assert await caller.ids() == ["a", "b", "theirs"]
    assert await caller.perform(read) == ["a", "b", "theirs"]
    await caller.commit()
    assert caller.store.perform(read) == ["a", "b", "theirs"]


@pytest.mark.parametrize("both", [insert_two, insert_in_steps], ids=lambda operation: operation.name)
async def test_an_error_undoes_the_operation_alone(caller: Caller, both: Operation[..., Any]) -> None:
    await caller.say("INSERT INTO perdure_thing (id) VALUES ('b')")
    with pytest.raises(InternalError) as refused:
        await caller.perform(both, "a", "b")
    assert refused.value.code == "store.constraint"
    assert refused.value.__cause__ is None
    assert refused.value.__context__ is None
    assert await caller.ids() == ["b"]
    await caller.perform(insert, "c")
    await caller.commit()
    assert caller.store.perform(read) == ["b", "c"]


async def test_a_refusal_undoes_the_operation_alone(caller: Caller) -> None:
    await caller.say("INSERT INTO perdure_thing (id) VALUES ('theirs')")
    with pytest.raises(Refused, match="Not today"):
        await caller.perform(insert_and_refuse, "a")
    await caller.perform(insert_without_end, "b")
    await caller.commit()
    assert caller.store.perform(read) == ["b", "theirs"]


async def test_a_refused_first_operation_leaves_the_connection_usable(caller: Caller) -> None:
    with pytest.raises(Refused):
        await caller.perform(insert_and_refuse, "a")
    await caller.perform(insert, "b")
    await caller.commit()
    assert caller.store.perform(read) == ["b"]


async def test_inside_a_savepoint_of_the_caller(caller: Caller) -> None:
    await caller.say("INSERT INTO perdure_thing (id) VALUES ('theirs')")
    await caller.say("SAVEPOINT perdure")
    await caller.perform(insert, "a")
    await caller.say("ROLLBACK TO SAVEPOINT perdure")
    await caller.perform(insert, "b")
    await caller.say("RELEASE SAVEPOINT perdure")
    await caller.commit()
    assert caller.store.perform(read) == ["b", "theirs"]


async def test_rows_and_times_are_what_stores_return(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caller.store, "_clock", lambda: NOON)
    factory: Any = sqlite3.Row if isinstance(caller.connection, sqlite3.Connection) else dict_row
    caller.connection.row_factory = factory
    await caller.perform(insert, "a", "ä")
    assert await caller.perform(run, "read") == [("a", "ä")]
    assert await caller.perform(run, "read_times") == [(NOON,)]
    assert caller.connection.row_factory is factory


async def test_an_operation_that_asks_nothing_is_fine(caller: Caller) -> None:
    @operation("write")
    def nothing() -> Op[str]:
        yield from announce(frozenset())
        return "done"

    @operation("write")
    def empty_end() -> Op[str]:
        yield from ask("insert", id="a", note=None)
        yield from ask_all(final=True, wake=MAIL)
        return "done"

    assert await caller.perform(nothing) == "done"
    assert await caller.perform(empty_end) == "done"
    await caller.commit()
    assert caller.store.perform(read) == ["a"]


async def test_values_a_database_cannot_store_are_refused(caller: Caller) -> None:
    if caller.store.dialect == "sqlite":
        pytest.skip("SQLite stores NUL")
    for bad in ("a\0b", "a\ud800b"):
        with pytest.raises(Invalid) as refused:
            await caller.perform(insert, bad)
        assert refused.value.code == "store.bad_value"
    await caller.perform(insert, "b")
    await caller.commit()
    assert caller.store.perform(read) == ["b"]


async def test_listeners_in_the_process_are_told_at_once(caller: Caller) -> None:
    heard: list[frozenset[str]] = []
    caller.store.subscribe(heard.append)
    with pytest.raises(Refused):
        await caller.perform(insert_and_refuse, "a", wake=MAIL)
    assert heard == []
    await caller.perform(insert, "a", wake=MAIL)
    await caller.perform(insert_without_end, "b", wake=MAIL)
    assert heard == [MAIL, MAIL]


async def test_a_missing_schema_is_named(caller: Caller) -> None:
    await caller.say("DROP TABLE perdure_thing")
    with pytest.raises(SchemaMissing):
        await caller.perform(insert, "a")


async def test_a_closed_connection_is_refused(caller: Caller) -> None:
    await caller.close()
    await refuses(caller, "conn.closed")


async def test_a_sync_connection_is_refused_by_async_methods_and_the_reverse(caller: Caller) -> None:
    wrong = join.perform if isinstance(caller.connection, psycopg.AsyncConnection) else join.aperform
    with pytest.raises(UnsupportedConnection, match=r"await the method|asyncio\.to_thread") as refused:
        await _done(wrong(caller.connection, caller.store, insert, "a"))
    assert refused.value.code == "conn.wrong_mode"


async def test_a_connection_to_another_database_of_the_same_kind_is_refused(
    caller: Caller, tmp_path: Path, postgres_server: str
) -> None:
    if caller.store.dialect == "sqlite":
        caller.store = SqliteStore(str(tmp_path / "other.db"))
    else:
        caller.store = PostgresStore(with_database(postgres_server, "another"))
    await refuses(caller, "conn.other_database")


async def test_the_database_must_fit(caller: Caller, request: pytest.FixtureRequest) -> None:
    other = "store" if caller.store.dialect == "sqlite" else "sqlite_store"
    caller.store = request.getfixturevalue(other)
    await refuses(caller, "conn.other_database")


@pytest.mark.parametrize("thing", [object(), "postgresql://x", None, sqlite3])
def test_what_is_no_connection_is_refused(sqlite_store: SqliteStore, thing: object) -> None:
    with pytest.raises(UnsupportedConnection, match="cannot join"):
        join.perform(thing, sqlite_store, insert, "a")


def test_a_class_derived_from_a_known_one_is_known(sqlite_store: SqliteStore) -> None:
    class Own(sqlite3.Connection):
        pass

    connection = sqlite_connection(sqlite_store, factory=Own)
    join.perform(connection, sqlite_store, insert, "a")
    connection.commit()
    connection.close()
    assert sqlite_store.perform(read) == ["a"]


def test_no_driver_is_imported_to_look_at_a_connection() -> None:
    libraries = {package for package, _ in (*join.ADAPTERS, *join.WRAPPERS)}
    script = f"import sys; import perdure.store.borrowed.join; print({libraries} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# SQLite


def test_autocommit_is_refused_on_sqlite(sqlite_store: SqliteStore) -> None:
    connection = sqlite_connection(sqlite_store, isolation_level=None)
    with pytest.raises(UnsupportedConnection, match="begin one first") as refused:
        join.perform(connection, sqlite_store, insert, "a")
    assert refused.value.code == "conn.autocommit"
    connection.execute("BEGIN")
    join.perform(connection, sqlite_store, insert, "a")
    connection.execute("COMMIT")
    assert sqlite_store.perform(read) == ["a"]
    connection.close()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.12 has another autocommit")
@pytest.mark.parametrize("autocommit", [True, False])
def test_the_newer_autocommit(sqlite_store: SqliteStore, autocommit: bool) -> None:
    connection = sqlite_connection(sqlite_store, autocommit=autocommit)
    if autocommit:
        with pytest.raises(UnsupportedConnection) as refused:
            join.perform(connection, sqlite_store, insert, "a")
        assert refused.value.code == "conn.autocommit"
    else:
        join.perform(connection, sqlite_store, insert, "a")
        connection.commit()
        assert sqlite_store.perform(read) == ["a"]
    connection.close()


def test_a_refusal_holds_no_lock_on_sqlite(sqlite_store: SqliteStore) -> None:
    connection = sqlite_connection(sqlite_store)
    with pytest.raises(Refused):
        join.perform(connection, sqlite_store, insert_and_refuse, "a")
    assert not connection.in_transaction
    sqlite_store.perform(insert, "b")
    connection.close()


def test_what_begins_by_reading_may_still_write_on_sqlite(sqlite_store: SqliteStore) -> None:
    """The transaction we begin has the write lock from its start: nobody can come in between."""
    connection, other = sqlite_connection(sqlite_store), sqlite_connection(sqlite_store, timeout=0)

    @operation("write")
    def read_and_insert() -> Op[None]:
        yield from ask("read")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
        yield from ask("insert", id="a", note=None)

    join.perform(connection, sqlite_store, read_and_insert)
    connection.commit()
    assert sqlite_store.perform(read) == ["a"]
    connection.close()
    other.close()


def test_another_writer_makes_sqlite_busy(sqlite_store: SqliteStore) -> None:
    holder, connection = (sqlite_connection(sqlite_store, timeout=0) for _ in range(2))
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusy):
        join.perform(connection, sqlite_store, insert, "a")
    assert not connection.in_transaction
    holder.close()
    connection.close()


def test_a_transaction_that_began_to_read_cannot_write_after_others(sqlite_store: SqliteStore) -> None:
    connection = sqlite_connection(sqlite_store, isolation_level=None)
    connection.execute("BEGIN")
    connection.execute("SELECT * FROM perdure_thing").fetchall()
    sqlite_store.perform(insert, "a")
    with pytest.raises(StoreBusy, match="BEGIN IMMEDIATE"):
        join.perform(connection, sqlite_store, insert, "b")
    connection.close()


def test_texts_stay_as_the_caller_wants_them(sqlite_store: SqliteStore) -> None:
    connection = sqlite_connection(sqlite_store)
    connection.text_factory = bytes
    join.perform(connection, sqlite_store, insert, "a")
    assert join.perform(connection, sqlite_store, read) == ["a"]
    assert connection.execute("SELECT id FROM perdure_thing").fetchall() == [(b"a",)]
    connection.close()


def test_a_connection_of_another_thread_is_refused(sqlite_store: SqliteStore) -> None:
    with ThreadPoolExecutor(1) as thread:
        connection = thread.submit(sqlite_connection, sqlite_store).result()
        with pytest.raises(UnsupportedConnection, match="another thread"):
            join.perform(connection, sqlite_store, insert, "a")
        thread.submit(connection.close).result()


def test_an_old_sqlite_does_not_checkpoint_by_itself(sqlite_store: SqliteStore) -> None:
    connection = sqlite_connection(sqlite_store)
    join.perform(connection, sqlite_store, insert, "a")
    (pages,) = connection.execute("PRAGMA wal_autocheckpoint").fetchone()
    assert bool(pages) is (sqlite3.sqlite_version_info >= (3, 51, 3))
    connection.close()


# PostgreSQL


async def refuses(caller: Caller, code: str) -> None:
    with pytest.raises(UnsupportedConnection) as refused:
        await caller.perform(insert, "a")
    assert refused.value.code == code


@pytest.fixture(params=[psycopg.Connection, psycopg.AsyncConnection], ids=["blocking", "async"])
async def client(
    request: pytest.FixtureRequest, store: PostgresStore, postgres_url: str
) -> AsyncIterator[Caller]:
    caller = Caller(await _done(request.param.connect(postgres_url)), store)
    yield caller
    await caller.close()


async def test_autocommit_is_refused_on_postgres(client: Caller) -> None:
    await _done(client.connection.set_autocommit(True))
    await refuses(client, "conn.autocommit")
    await client.say("BEGIN")
    await client.perform(insert, "a")
    await client.say("COMMIT")
    assert client.store.perform(read) == ["a"]


async def test_a_failed_transaction_is_refused(client: Caller) -> None:
    with pytest.raises(psycopg.Error):
        await client.say("SELECT 1 / 0")
    await refuses(client, "conn.aborted")


async def test_a_pipeline_is_refused(client: Caller) -> None:
    if isinstance(client.connection, psycopg.AsyncConnection):
        async with client.connection.pipeline():
            await refuses(client, "conn.pipeline")
    else:
        with client.connection.pipeline():
            await refuses(client, "conn.pipeline")


async def test_another_encoding_is_refused(client: Caller) -> None:
    await client.say("SET client_encoding = 'latin1'")
    await refuses(client, "conn.encoding")


async def test_inside_a_transaction_block_of_psycopg(client: Caller) -> None:
    await _done(client.connection.set_autocommit(True))
    if isinstance(client.connection, psycopg.AsyncConnection):
        async with client.connection.transaction():
            await client.perform(insert, "a")
    else:
        with client.connection.transaction():
            await client.perform(insert, "a")
    assert client.store.perform(read) == ["a"]


async def test_topics_arrive_when_the_caller_commits(client: Caller, admin: psycopg.Connection[Any]) -> None:
    admin.execute("LISTEN perdure")
    await client.perform(insert, "a", wake=MAIL)
    await client.perform(insert_without_end, "b", wake=frozenset({"queue/late"}))
    with pytest.raises(Refused):
        await client.perform(insert_and_refuse, "c", wake=frozenset({"queue/never"}))
    assert list(admin.notifies(timeout=0)) == []
    await client.commit()
    heard = [note.payload for note in admin.notifies(timeout=10, stop_after=2)]
    assert heard == ["queue/mail", "queue/late"]


async def test_the_connection_is_left_as_it_was(client: Caller) -> None:
    connection = client.connection
    settings = "SELECT name, setting FROM pg_settings WHERE name <> 'transaction_isolation' ORDER BY name"

    async def state() -> object:
        rows = await _done((await client.say(settings)).fetchall())
        row = await _done((await client.say("SELECT CAST('{}' AS json), timestamptz 'epoch', 7")).fetchone())
        return rows, [type(value) for value in row], connection.cursor_factory, connection.prepare_threshold

    before = await state()
    for n in range(10):
        await client.perform(insert, str(n))
    assert await state() == before
    prepared = await _done(
        (
            await client.say("SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE 'INSERT%'")
        ).fetchone()
    )
    assert prepared == (0,)


async def test_cursors_of_the_caller_s_own_making_do_not_matter(client: Caller) -> None:
    asynchronous = isinstance(client.connection, psycopg.AsyncConnection)
    client.connection.cursor_factory = psycopg.AsyncRawCursor if asynchronous else psycopg.RawCursor
    await client.perform(insert, "a", "100%")
    assert await client.perform(run, "read") == [("a", "100%")]


async def test_a_deadlock_asks_for_the_whole_transaction_again(
    client: Caller, admin: psycopg.Connection[Any], postgres_url: str
) -> None:
    for id in ("a", "b"):
        client.store.perform(insert, id)
    async with await psycopg.AsyncConnection.connect(postgres_url) as other:
        # The victim is whoever notices first; the other side never looks.
        await other.execute("SET deadlock_timeout = '1min'")
        await other.execute("UPDATE perdure_thing SET note = 'b' WHERE id = 'b'")
        await client.perform(run, "update", id="a", note="x")
        blocked = asyncio.create_task(other.execute("UPDATE perdure_thing SET note = 'a' WHERE id = 'a'"))
        waiting = (
            "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        await auntil(lambda: admin.execute(waiting).fetchone())
        with pytest.raises(StoreBusy, match="run it again") as busy:
            await client.perform(run, "update", id="b", note="x")
        assert busy.value.code == "store.contended"
        await client.rollback()
        await blocked


async def test_a_read_only_transaction_is_read_only(client: Caller) -> None:
    await _done(client.connection.set_read_only(True))
    with pytest.raises(StoreReadOnly):
        await client.perform(insert, "a")
    assert await client.perform(run, "one") == [(1,)]


async def test_a_cancelled_call_undoes_itself(store: PostgresStore, admin, postgres_url: str) -> None:
    @operation("write")
    def insert_and_sleep() -> Op[None]:
        yield from ask_all(Query("insert", {"id": "a", "note": None}))
        yield from ask("sleep", seconds=60)

    async with await psycopg.AsyncConnection.connect(postgres_url) as connection:
        await connection.execute("INSERT INTO perdure_thing (id) VALUES ('theirs')")
        call = asyncio.create_task(join.aperform(connection, store, insert_and_sleep))
        await auntil(
            lambda: admin.execute(
                "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
            ).fetchone()
        )
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await connection.commit()
    assert store.perform(read) == ["theirs"]


def test_two_round_trips_on_postgres_the_second_for_the_release(admin, proxy, store: PostgresStore) -> None:
    with psycopg.connect(proxy.url) as connection:
        connection.execute("SELECT 1")
        before, proxy.latency = proxy.round_trips, 0.05
        join.perform(connection, store, insert, "a", wake=MAIL)
        assert proxy.round_trips - before == 2
        proxy.latency = 0.0


def test_a_lost_connection_is_away(admin: psycopg.Connection[Any], postgres_url: str) -> None:
    store = postgres_store(postgres_url)
    with psycopg.connect(postgres_url, row_factory=tuple_row) as connection:
        admin.execute("SELECT pg_terminate_backend(%s, 10000)", [connection.info.backend_pid])
        with pytest.raises(StoreAway):
            join.perform(connection, store, insert, "a")
    store.close()
