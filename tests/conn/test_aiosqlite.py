"""What is particular to connections of aiosqlite."""

from __future__ import annotations

import asyncio
import sqlite3
import sys

import aiosqlite
import pytest

from perdure.errors import Refused
from perdure.store.borrowed import join
from perdure.store.sqlite.store import SqliteStore
from tests.conn.refusals import arefuses
from tests.harness.waiting import auntil
from tests.store.things import insert, insert_and_refuse, read


async def test_aiosqlite_in_autocommit_needs_a_transaction(sqlite_store: SqliteStore) -> None:
    async with aiosqlite.connect(sqlite_store.path, isolation_level=None) as connection:
        await arefuses(connection, sqlite_store, "conn.autocommit")
        await connection.execute("BEGIN")
        await join.aperform(connection, sqlite_store, insert, "a")
        await connection.execute("COMMIT")
    assert sqlite_store.perform(read) == ["a"]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.12 has another autocommit")
@pytest.mark.parametrize("autocommit", [True, False])
async def test_the_newer_autocommit_on_aiosqlite(sqlite_store: SqliteStore, autocommit: bool) -> None:
    async with aiosqlite.connect(sqlite_store.path, autocommit=autocommit) as connection:
        if autocommit:
            await arefuses(connection, sqlite_store, "conn.autocommit")
            return
        await join.aperform(connection, sqlite_store, insert, "a")
        await connection.commit()
    assert sqlite_store.perform(read) == ["a"]


async def test_aiosqlite_keeps_its_factories_and_a_refusal_holds_no_lock(sqlite_store: SqliteStore) -> None:
    async with aiosqlite.connect(sqlite_store.path) as connection:
        connection.row_factory, connection.text_factory = sqlite3.Row, bytes
        with pytest.raises(Refused):
            await join.aperform(connection, sqlite_store, insert_and_refuse, "a")
        assert not connection.in_transaction
        sqlite_store.perform(insert, "b")
        assert await join.aperform(connection, sqlite_store, read) == ["b"]
        assert (connection.row_factory, connection.text_factory) == (sqlite3.Row, bytes)


async def test_a_cancelled_wait_for_the_lock_leaves_nothing_open_on_aiosqlite(
    sqlite_store: SqliteStore,
) -> None:
    holder = sqlite3.connect(sqlite_store.path, isolation_level=None)
    async with aiosqlite.connect(sqlite_store.path, timeout=60) as connection:
        holder.execute("BEGIN IMMEDIATE")
        call = asyncio.create_task(join.aperform(connection, sqlite_store, insert, "a"))
        ran: list[str] = []
        await connection.set_trace_callback(ran.append)
        await auntil(lambda: any("BEGIN" in sql for sql in ran))
        call.cancel()
        holder.execute("ROLLBACK")
        with pytest.raises(asyncio.CancelledError):
            await call
        await connection.execute("SELECT 1")
        assert not connection.in_transaction
    holder.close()
    assert sqlite_store.perform(read) == []
