"""Async callers: from any event loop, cancelled at any time, in any number."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from perdure.errors import InternalError, Refused, StoreClosed
from perdure.ops.op import Op, ask, operation
from perdure.store.postgres.store import PostgresStore
from tests.harness.waiting import auntil
from tests.store.things import insert, insert_and_refuse, postgres_store, read, run, run_urgently

WAITING = (
    "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory' AND datname = current_database()"
)


@pytest.fixture
def gated(admin: psycopg.Connection[Any], postgres_url: str):
    """A store whose statement ``gate`` waits until the test lets go of a lock."""
    store = postgres_store(postgres_url, more={"gate": "SELECT pg_advisory_xact_lock_shared(7)"}, size=2)
    admin.execute("SELECT pg_advisory_lock(7)")
    yield store
    admin.execute("SELECT pg_advisory_unlock_all()")
    store.close()


def waiting(admin: psycopg.Connection[Any]) -> int:
    (count,) = admin.execute(WAITING).fetchone() or (0,)
    return count


async def test_an_operation_can_be_awaited(store: PostgresStore) -> None:
    assert await store.aperform(insert, "a") == [("a",)]
    assert await store.aperform(read) == ["a"]
    with pytest.raises(Refused):
        await store.aperform(insert_and_refuse, "b")
    with pytest.raises(InternalError):
        await store.aperform(insert, "a")


def test_event_loops_come_and_go(store: PostgresStore) -> None:
    async def insert_some(loop: int) -> None:
        await asyncio.gather(*(store.aperform(insert, f"{loop}-{n}") for n in range(5)))

    asyncio.run(insert_some(0))
    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(asyncio.run, insert_some(n)) for n in range(1, 5)]:
            done.result(30)
    asyncio.run(insert_some(5))
    assert len(store.perform(read)) == 30


def test_an_event_loop_may_be_closed_while_an_operation_runs(
    gated: PostgresStore, admin: psycopg.Connection[Any]
) -> None:
    loop = asyncio.new_event_loop()
    pending = loop.create_task(gated.aperform(run, "gate"))
    loop.run_until_complete(auntil(lambda: waiting(admin) == 1))
    pending.cancel()
    loop.run_until_complete(asyncio.gather(pending, return_exceptions=True))
    loop.close()
    admin.execute("SELECT pg_advisory_unlock_all()")
    assert asyncio.run(gated.aperform(run, "gate"))


async def test_a_cancelled_call_leaves_its_connection_whole(
    gated: PostgresStore, admin: psycopg.Connection[Any]
) -> None:
    @operation("write")
    def wait_and_insert() -> Op[None]:
        yield from ask("gate")
        yield from ask("insert", id="a", note=None)

    call = asyncio.create_task(gated.aperform(wait_and_insert))
    await auntil(lambda: waiting(admin) == 1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    admin.execute("SELECT pg_advisory_unlock_all()")
    await auntil(lambda: admin.execute("SELECT 1 FROM perdure_thing").fetchone())
    assert await gated.aperform(read) == ["a"]


async def test_a_call_cancelled_in_line_is_never_run(
    gated: PostgresStore, admin: psycopg.Connection[Any]
) -> None:
    in_front = [asyncio.create_task(gated.aperform(run, "gate")) for _ in range(2)]
    await auntil(lambda: waiting(admin) == 2)
    call = asyncio.create_task(gated.aperform(insert, "a"))
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.wait([call])
    admin.execute("SELECT pg_advisory_unlock_all()")
    await asyncio.gather(*in_front)
    assert await gated.aperform(read) == []


async def test_a_crowd_shares_a_few_threads_and_connections(
    gated: PostgresStore, admin: psycopg.Connection[Any]
) -> None:
    crowd = [asyncio.create_task(gated.aperform(run, "gate")) for _ in range(50)]
    await auntil(lambda: waiting(admin) == 2)
    ours = [thread for thread in threading.enumerate() if thread.name.startswith("perdure-postgres")]
    assert len(ours) == 2
    assert all(thread.daemon for thread in ours)
    admin.execute("SELECT pg_advisory_unlock_all()")
    await asyncio.gather(*crowd)
    assert waiting(admin) == 0


async def test_urgent_operations_do_not_wait_for_ordinary_ones(
    gated: PostgresStore, admin: psycopg.Connection[Any]
) -> None:
    crowd = [asyncio.create_task(gated.aperform(run, "gate")) for _ in range(10)]
    await auntil(lambda: waiting(admin) == 2)
    async with asyncio.timeout(30):
        assert await gated.aperform(run_urgently, "one") == [(1,)]
        assert await asyncio.to_thread(gated.perform, run_urgently, "one") == [(1,)]
    admin.execute("SELECT pg_advisory_unlock_all()")
    await asyncio.gather(*crowd)


async def test_the_event_loop_runs_on_meanwhile(gated: PostgresStore, admin: psycopg.Connection[Any]) -> None:
    call = asyncio.create_task(gated.aperform(run, "gate"))
    await auntil(lambda: waiting(admin) == 1)
    for _ in range(100):
        await asyncio.sleep(0)
    assert not call.done()
    admin.execute("SELECT pg_advisory_unlock_all()")
    await call


async def test_closed_is_closed_for_async_callers_too(store: PostgresStore) -> None:
    await store.aperform(run, "one")
    store.close()
    with pytest.raises(StoreClosed):
        await store.aperform(run, "one")
    await auntil(lambda: not [t for t in threading.enumerate() if t.name.startswith("perdure-postgres")])
