"""The event loop itself performs operations of one round trip."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from perdure.errors import StoreAway
from perdure.ops.op import Op, Rows, ask_last, operation
from perdure.store.postgres import session
from perdure.store.postgres.store import PostgresStore
from tests.harness.waiting import auntil
from tests.store.proxy import Proxy
from tests.store.things import insert, insert_in_steps, insert_once, postgres_store, read, run

PASSING = (
    "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory' AND datname = current_database()"
)


@operation("write")
def pass_gate() -> Op[Rows]:
    return (yield from ask_last("gate"))


@pytest.fixture
def small(admin: psycopg.Connection[Any], postgres_url: str) -> Iterator[PostgresStore]:
    """Two connections, one to fly on, and a statement that waits until the test lets go of a lock."""
    store = postgres_store(postgres_url, more={"gate": "SELECT pg_advisory_xact_lock_shared(7)"}, size=2)
    store.perform(run, "one")
    yield store
    admin.execute("SELECT pg_advisory_unlock_all()")
    store.close()


def passing(admin: psycopg.Connection[Any]) -> bool:
    return (admin.execute(PASSING).fetchone() or (0,))[0] == 1


async def test_one_round_trip_needs_no_thread(small: PostgresStore) -> None:
    before = set(threading.enumerate())
    assert await small.aperform(insert, "a") == [("a",)]
    assert await small.aperform(read) == ["a"]
    assert set(threading.enumerate()) <= before
    await small.aperform(insert_in_steps, "b", "c")
    assert not set(threading.enumerate()) <= before
    assert await small.aperform(read) == ["a", "b", "c"]


async def test_a_loop_that_stands_still_holds_no_lock(
    small: PostgresStore, admin: psycopg.Connection[Any]
) -> None:
    call = asyncio.create_task(small.aperform(insert, "a"))
    await asyncio.sleep(0)
    # From here on the loop does nothing until the row is committed.
    until = time.monotonic() + 60
    while not admin.execute("SELECT 1 FROM perdure_thing").fetchone():
        assert time.monotonic() < until
    assert not call.done()
    assert await call == [("a",)]


async def test_it_lands_though_nobody_waits_any_more(
    small: PostgresStore, admin: psycopg.Connection[Any]
) -> None:
    admin.execute("SELECT pg_advisory_lock(7)")
    call = asyncio.create_task(small.aperform(pass_gate))
    await auntil(lambda: passing(admin))
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    admin.execute("SELECT pg_advisory_unlock_all()")
    assert await small.aperform(insert, "a") == [("a",)]


def test_a_loop_that_is_closed_leaves_its_connection_to_others(
    small: PostgresStore, admin: psycopg.Connection[Any]
) -> None:
    admin.execute("SELECT pg_advisory_lock(7)")
    loop = asyncio.new_event_loop()
    call = loop.create_task(small.aperform(pass_gate))
    loop.run_until_complete(auntil(lambda: passing(admin)))
    call.cancel()
    loop.run_until_complete(asyncio.gather(call, return_exceptions=True))
    loop.close()
    assert asyncio.run(asyncio.wait_for(small.aperform(insert, "a"), 20)) == [("a",)]
    assert small.perform(read) == ["a"]


@pytest.mark.parametrize("prepare", [True, False])
async def test_more_than_the_sockets_hold_goes_both_ways(
    admin: psycopg.Connection[Any], postgres_url: str, prepare: bool
) -> None:
    store = postgres_store(postgres_url, prepare=prepare)
    note = "n" * 20_000_000

    @operation("write")
    def echo() -> Op[Rows]:
        yield from ask_last("insert", id="a", note=note)
        return []

    @operation("read")
    def read_all() -> Op[Rows]:
        return (yield from ask_last("read"))

    try:
        await store.aperform(run, "one")
        await store.aperform(echo)
        assert await store.aperform(read_all) == [("a", note)]
    finally:
        store.close()


async def test_a_lost_answer_is_asked_for_again(admin: psycopg.Connection[Any], proxy: Proxy) -> None:
    store = postgres_store(proxy.url)
    try:
        await store.aperform(run, "one")
        proxy.swallow_next_reply()
        await store.aperform(insert_once, "a")
        assert await store.aperform(read) == ["a"]
    finally:
        store.close()


async def test_an_answer_that_never_comes_is_given_up(
    admin: psycopg.Connection[Any], proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = postgres_store(proxy.url, patience=0.1)
    try:
        await store.aperform(run, "one")
        monkeypatch.setattr(session, "STATEMENT_SECONDS", 0.1)
        monkeypatch.setattr(session, "GRACE_SECONDS", 0.1)
        proxy.freeze()
        async with asyncio.timeout(30):
            with pytest.raises(StoreAway):
                await store.aperform(insert, "a")
    finally:
        proxy.thaw()
        store.close()


@pytest.mark.parametrize("how", ["both ways", "one way"])
async def test_a_connection_cut_in_the_middle_of_a_large_write_loses_nothing(
    admin: psycopg.Connection[Any], proxy: Proxy, how: str
) -> None:
    """libpq closes the socket, while the loop waits both to read from it and to write to it."""
    store = postgres_store(proxy.url, patience=20)
    try:
        await store.aperform(run, "one")
        proxy.freeze()
        writing = asyncio.create_task(store.aperform(insert_once, "a", "n" * 30_000_000))
        await auntil(lambda: any(call._writes for call in store._loop_io._in_flight))
        if how == "both ways":
            proxy.cut()
        else:
            proxy.hang_up()
        proxy.thaw()
        async with asyncio.timeout(60):
            await writing
        assert admin.execute("SELECT length(note) FROM perdure_thing").fetchall() == [(30_000_000,)]
        assert not store._loop_io._in_flight
    finally:
        proxy.thaw()
        store.close()


async def test_others_find_a_connection_though_a_loop_stands_still(
    admin: psycopg.Connection[Any], postgres_url: str
) -> None:
    store = postgres_store(postgres_url, more={"gate": "SELECT pg_advisory_xact_lock_shared(7)"}, size=4)
    try:
        await asyncio.gather(*(store.aperform(run, "one") for _ in range(4)))
        admin.execute("SELECT pg_advisory_lock(7)")
        calls = [asyncio.create_task(store.aperform(pass_gate)) for _ in range(2)]
        await asyncio.sleep(0)
        assert len(store._loop_io._in_flight) == 2
        # This loop waits here, as one does whose handler blocks.
        with ThreadPoolExecutor(1) as thread:
            assert thread.submit(store.perform, insert, "a").result(20) == [("a",)]
        admin.execute("SELECT pg_advisory_unlock_all()")
        await asyncio.gather(*calls)
    finally:
        admin.execute("SELECT pg_advisory_unlock_all()")
        store.close()


async def test_a_heartbeat_never_waits_for_a_loop(small: PostgresStore) -> None:
    @operation("write", priority="heartbeat")
    def beat() -> Op[Rows]:
        return (yield from ask_last("one"))

    await asyncio.to_thread(small.perform, beat)
    beating = asyncio.create_task(small.aperform(beat))
    await asyncio.sleep(0)
    assert not small._loop_io._in_flight
    await beating
