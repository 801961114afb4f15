"""What is particular to connections of asyncpg."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import asyncpg
import psycopg
import pytest

from perdure.errors import StoreBusy
from perdure.ops.op import Op, Query, ask, ask_all, operation
from perdure.store.borrowed import join
from perdure.store.postgres.store import PostgresStore
from tests.conn.refusals import arefuses
from tests.harness.waiting import auntil
from tests.store.things import insert, read


async def test_asyncpg_needs_a_transaction(store: PostgresStore, postgres_url: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    await arefuses(connection, store, "conn.autocommit", match="begin one first")
    async with connection.transaction():
        await join.aperform(connection, store, insert, "a")
    await connection.close()
    assert store.perform(read) == ["a"]


async def test_asyncpg_given_back_to_its_pool_is_closed(store: PostgresStore, postgres_url: str) -> None:
    async with asyncpg.create_pool(postgres_url, min_size=1, max_size=1) as pool:
        async with pool.acquire() as connection, connection.transaction():
            await join.aperform(connection, store, insert, "a")
        await arefuses(connection, store, "conn.closed")
    assert store.perform(read) == ["a"]


async def test_asyncpg_keeps_its_codecs_and_prepares_nothing_where_its_cache_is_off(
    store: PostgresStore, postgres_url: str
) -> None:
    connection = await asyncpg.connect(postgres_url, statement_cache_size=0)
    await connection.set_type_codec("json", schema="pg_catalog", encoder=json.dumps, decoder=json.loads)
    async with connection.transaction():
        await join.aperform(connection, store, insert, "a")
        assert await connection.fetchval("SELECT CAST('{}' AS json)") == {}
        assert await connection.fetchval("SELECT count(*) FROM pg_prepared_statements") == 0
    await connection.close()


async def test_asyncpg_runs_one_statement_at_a_time(
    store: PostgresStore, admin: psycopg.Connection[Any], postgres_url: str
) -> None:
    connection = await asyncpg.connect(postgres_url)
    async with connection.transaction():
        admin.execute("SELECT pg_advisory_lock(7)")
        other = asyncio.create_task(connection.execute("SELECT pg_advisory_xact_lock(7)"))
        await asyncio.sleep(0)
        await arefuses(connection, store, "conn.busy")
        admin.execute("SELECT pg_advisory_unlock(7)")
        await other
        await join.aperform(connection, store, insert, "a")
    await connection.close()


async def test_asyncpg_whose_statements_no_longer_fit_says_so(
    store: PostgresStore, postgres_url: str
) -> None:
    connection = await asyncpg.connect(postgres_url)
    for again in (False, True):
        transaction = connection.transaction()
        await transaction.start()
        if again:
            with psycopg.connect(postgres_url) as admin:
                admin.execute("ALTER TABLE perdure_thing ALTER id TYPE varchar")
            with pytest.raises(StoreBusy, match="again"):
                await join.aperform(connection, store, insert, "b")
            await transaction.rollback()
        else:
            await join.aperform(connection, store, insert, "a")
            await transaction.commit()
    async with connection.transaction():
        await join.aperform(connection, store, insert, "b")
    await connection.close()
    assert store.perform(read) == ["a", "b"]


@operation("write")
def insert_and_sleep() -> Op[None]:
    yield from ask_all(Query("insert", {"id": "a", "note": None}))
    yield from ask("sleep", seconds=60)


async def test_a_cancelled_call_undoes_itself_on_asyncpg(
    store: PostgresStore, admin: psycopg.Connection[Any], postgres_url: str
) -> None:
    connection = await asyncpg.connect(postgres_url)
    async with connection.transaction():
        await connection.execute("INSERT INTO perdure_thing (id) VALUES ('theirs')")
        call = asyncio.create_task(join.aperform(connection, store, insert_and_sleep))
        sleeps = (
            "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
        )
        await auntil(lambda: admin.execute(sleeps).fetchone())
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    await connection.close()
    assert store.perform(read) == ["theirs"]
