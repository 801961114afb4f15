"""What is particular to connections of psycopg, blocking and async."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from perdure.errors import (
    StoreBusy,
    StoreReadOnly,
    UnsupportedConnection,
)
from perdure.ops.op import Op, Operation, Query, ask, ask_all, operation
from perdure.store.borrowed import join
from perdure.store.postgres.store import PostgresStore
from perdure.store.store import Store
from tests.harness.waiting import auntil
from tests.store.things import (
    insert,
    read,
    run,
)

MAIL = frozenset({"queue/mail"})


class Caller:
    """A caller with a connection and a transaction on it."""

    def __init__(self, connection: Any, store: Store) -> None:
        self.connection, self.store = connection, store

    async def perform(self, operation: Operation[..., Any], *args: Any, **kwargs: Any) -> Any:
        if isinstance(self.connection, psycopg.AsyncConnection):
            return await join.aperform(self.connection, self.store, operation, *args, **kwargs)
        return join.perform(self.connection, self.store, operation, *args, **kwargs)

    async def say(self, sql: str) -> Any:
        return await _done(self.connection.execute(sql))

    async def commit(self) -> None:
        await _done(self.connection.commit())

    async def rollback(self) -> None:
        await _done(self.connection.rollback())

    async def close(self) -> None:
        await _done(self.connection.close())


async def _done(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


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


async def test_cursors_and_rows_of_the_caller_s_own_making_do_not_matter(client: Caller) -> None:
    asynchronous = isinstance(client.connection, psycopg.AsyncConnection)
    client.connection.cursor_factory = psycopg.AsyncRawCursor if asynchronous else psycopg.RawCursor
    client.connection.row_factory = dict_row
    await client.perform(insert, "a", "100%")
    assert await client.perform(run, "read") == [("a", "100%")]
    assert client.connection.row_factory is dict_row


async def test_a_deadlock_asks_for_the_whole_transaction_again(
    client: Caller, admin: psycopg.Connection[Any], postgres_url: str
) -> None:
    for id in ("a", "b"):
        client.store.perform(insert, id)
    async with await psycopg.AsyncConnection.connect(postgres_url) as other:
        # The side that notices the deadlock first is the victim; the other side never checks.
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
