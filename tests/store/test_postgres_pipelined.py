"""A pipelined operation may be sent behind the one in flight, on one connection; each gets its own answer."""

from __future__ import annotations

import asyncio
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from selectors import EVENT_READ
from typing import Any

import psycopg
import pytest

from perdure.errors import PerdureError, StoreAway
from perdure.ops.op import Op, Query, Rows, announce, ask, ask_all, operation
from perdure.store.postgres import session
from perdure.store.postgres.adapt import Statement
from perdure.store.postgres.session import BEHIND, Session, SocketWaits
from perdure.store.postgres.store import PostgresStore
from tests.harness.waiting import auntil
from tests.store.proxy import Proxy
from tests.store.things import postgres_store, read

GATES = {
    "gate": "SELECT pg_advisory_xact_lock_shared(7)",
    "late_gate": "SELECT pg_advisory_xact_lock_shared(8)",
}


@operation("write", priority="urgent", pipelined=True)
def put(*ids: str, gate: bool = False, wake: str | None = None) -> Op[list[str]]:
    """Insert in one step; behind the gate, if asked; and say so when it is done."""
    queries = [Query("insert", {"id": id, "note": None}) for id in ids]
    answers = yield from ask_all(*([Query("gate", {})] if gate else []), *queries, final=True)
    yield from announce(frozenset([wake] if wake else []))
    return [rows[0][0] for rows in answers[-len(queries) :]]


@operation("write", priority="urgent", pipelined=True)
def put_once(id: str, note: str | None = None) -> Op[Rows]:
    (rows,) = yield from ask_all(Query("insert_once", {"id": id, "note": note}), final=True)
    return rows


@operation("write", priority="urgent", pipelined=True)
def look_behind_gate() -> Op[Rows]:
    _, rows = yield from ask_all(Query("gate", {}), Query("one", {}), final=True)
    return rows


@operation("write", priority="urgent", pipelined=True)
def pass_late(id: str, note: str) -> Op[Rows]:
    _, rows = yield from ask_all(
        Query("late_gate", {}), Query("insert_once", {"id": id, "note": note}), final=True
    )
    return rows


def large_turn(store: PostgresStore, session: Session) -> SocketWaits[Rows]:
    return store._perform(session, put_once, ("b", "n" * 5_000_000), {}, at_once=True)


@operation("write", priority="urgent")
def put_urgently(id: str) -> Op[Rows]:
    (rows,) = yield from ask_all(Query("insert", {"id": id, "note": None}), final=True)
    return rows


@operation("write", priority="urgent", pipelined=True)
def put_in_steps(first: str, second: str) -> Op[None]:
    yield from ask("insert", id=first, note=None)
    yield from ask_all(Query("insert", {"id": second, "note": None}), final=True)


@pytest.fixture
def store(admin: psycopg.Connection[Any], postgres_url: str) -> Iterator[PostgresStore]:
    with opened(postgres_url) as store:
        yield store
        admin.execute("SELECT pg_advisory_unlock_all()")


@contextmanager
def opened(url: str, **options: Any) -> Iterator[PostgresStore]:
    """A store with one connection that lies idle and knows its statements."""
    store = postgres_store(url, more=GATES, **options)
    store.perform(put, "first", gate=True)
    store.perform(put_once, "first")
    yield store
    store.close()


@contextmanager
def closed_gate(admin: psycopg.Connection[Any]) -> Iterator[None]:
    admin.execute("SELECT pg_advisory_lock(7)")
    try:
        yield
    finally:
        admin.execute("SELECT pg_advisory_unlock_all()")


async def under_way(store: PostgresStore, *ops: Any) -> list[asyncio.Task[Any]]:
    """Each sent before the next."""
    tasks = []
    for op in ops:
        tasks.append(asyncio.create_task(op))
        await asyncio.sleep(0)
    assert len(store._loop_io._in_flight) == len(ops)
    return tasks


async def test_the_second_goes_on_the_connection_of_the_first(
    store: PostgresStore, admin: psycopg.Connection[Any]
) -> None:
    threads = set(threading.enumerate())
    with closed_gate(admin):
        tasks = await under_way(store, store.aperform(put, "a", gate=True), store.aperform(put, "b", "c"))
        assert store._pool.use() == (1, 0)
        assert not any(task.done() for task in tasks)
    assert await asyncio.gather(*tasks) == [["a"], ["b", "c"]]
    assert set(threading.enumerate()) <= threads
    assert await store.aperform(read) == ["a", "b", "c", "first"]
    assert not store._loop_io._in_flight
    assert store._pool.use()[0] == 0


def test_the_second_leaves_the_answer_of_the_first_alone(store: PostgresStore) -> None:
    """Also where that has come already, as it may while something large is being sent."""
    with store._pool.lend("urgent", timeout=20) as session:
        session.send(Statement.parse("SELECT 1"))
        session.sync()
        one = session.answer()
        assert next(one) == EVENT_READ
        session.send(Statement.parse("SELECT 2"))
        session.sync()
        two = session.answer()
        session._wait(EVENT_READ)
        session._pgconn.consume_input()
        assert next(two) == BEHIND
        assert session.wait_for(one) == [[(1,)]]
        assert session.wait_for(two) == [[(2,)]]


async def test_the_next_goes_behind_the_one_that_went_behind(
    store: PostgresStore, admin: psycopg.Connection[Any]
) -> None:
    for i in range(20):
        with closed_gate(admin):
            one, two = await under_way(
                store, store.aperform(put, f"a{i}", gate=True), store.aperform(put, f"b{i}", gate=True)
            )
        assert await one == [f"a{i}"]
        three = asyncio.create_task(store.aperform(put, f"c{i}"))
        assert await two == [f"b{i}"]
        assert await three == [f"c{i}"]
    assert store._pool.use() == (0, 1)


async def test_the_first_may_fail(store: PostgresStore, admin: psycopg.Connection[Any]) -> None:
    with closed_gate(admin):
        one, two = await under_way(
            store, store.aperform(put, "a", "first", gate=True), store.aperform(put, "b")
        )
    with pytest.raises(PerdureError):
        await one
    assert await two == ["b"]
    assert await store.aperform(put, "c") == ["c"]
    assert await store.aperform(read) == ["b", "c", "first"]


async def test_the_second_may_fail(store: PostgresStore, admin: psycopg.Connection[Any]) -> None:
    with closed_gate(admin):
        one, two = await under_way(
            store, store.aperform(put, "a", gate=True), store.aperform(put, "b", "first")
        )
    assert await one == ["a"]
    with pytest.raises(PerdureError):
        await two
    assert await store.aperform(put, "c") == ["c"]
    assert await store.aperform(read) == ["a", "c", "first"]


async def test_what_cannot_be_sent_leaves_nothing_behind(
    store: PostgresStore, admin: psycopg.Connection[Any]
) -> None:
    """Half of it is queued by then, and would go with whatever is sent next."""
    with closed_gate(admin):
        one = asyncio.create_task(store.aperform(put, "a", gate=True))
        await asyncio.sleep(0)
        two = asyncio.create_task(store.aperform(put, "b", "\ud800"))
        await asyncio.sleep(0)
    assert await one == ["a"]
    with pytest.raises((PerdureError, UnicodeError)):
        await two
    assert await store.aperform(put, "c") == ["c"]
    assert await store.aperform(read) == ["a", "c", "first"]


async def test_what_takes_longer_does_not_go_behind(
    store: PostgresStore, admin: psycopg.Connection[Any]
) -> None:
    """It would hold its locks while the loop stands still."""
    with closed_gate(admin):
        (one,) = await under_way(store, store.aperform(put, "a", gate=True))
        await store.aperform(put_in_steps, "b", "c")
        assert not one.done()
    assert await one == ["a"]
    assert await store.aperform(read) == ["a", "b", "c", "first"]


async def test_nothing_else_goes_behind_a_turn_nor_a_turn_behind_anything_else(
    store: PostgresStore, admin: psycopg.Connection[Any]
) -> None:
    """A finish waits for whoever holds its row; turns are not to wait with it."""
    with closed_gate(admin):
        (one,) = await under_way(store, store.aperform(put, "a", gate=True))
        assert await asyncio.wait_for(store.aperform(put_urgently, "b"), 20) == [("b",)]
        assert not one.done()
    assert await one == ["a"]
    admin.execute("BEGIN; INSERT INTO perdure_thing (id) VALUES ('c')")
    (one,) = await under_way(store, store.aperform(put_urgently, "c"))
    assert not store.takes_another_cycle
    assert await asyncio.wait_for(store.aperform(put, "d"), 20) == ["d"]
    admin.execute("ROLLBACK")
    assert await one == [("c",)]


async def test_whoever_asks_is_told_whether_a_turn_could_go_behind(
    store: PostgresStore, admin: psycopg.Connection[Any]
) -> None:
    told = [store.takes_another_cycle]
    with closed_gate(admin):
        one = asyncio.create_task(store.aperform(put, "a", gate=True))
        await asyncio.sleep(0)
        told.append(store.takes_another_cycle)
        two = asyncio.create_task(store.aperform(put, "b"))
        await asyncio.sleep(0)
        told.append(store.takes_another_cycle)
    await asyncio.gather(one, two)
    assert told == [False, True, False]


async def test_a_third_does_not_wait_for_two(store: PostgresStore, admin: psycopg.Connection[Any]) -> None:
    with closed_gate(admin):
        tasks = await under_way(
            store, store.aperform(put, "a", gate=True), store.aperform(put, "b", gate=True)
        )
        assert await store.aperform(put, "c") == ["c"]
    assert await asyncio.gather(*tasks) == [["a"], ["b"]]


async def test_a_notice_of_the_first_comes_behind_the_second(
    store: PostgresStore, admin: psycopg.Connection[Any]
) -> None:
    """It is known only once the first is answered, and nobody waits for it."""
    admin.execute(f'LISTEN "{store.channel}"'.encode())
    with closed_gate(admin):
        one, two = await under_way(
            store,
            store.aperform(put, "a", gate=True, wake="queue/one"),
            store.aperform(put, "b", wake="queue/two"),
        )
    assert (await one, await two) == (["a"], ["b"])
    assert await store.aperform(put, "c") == ["c"]
    assert [heard.payload for heard in admin.notifies(timeout=20, stop_after=2)] == ["queue/one", "queue/two"]


async def test_both_are_asked_again_when_their_connection_is_lost(
    admin: psycopg.Connection[Any], proxy: Proxy
) -> None:
    with opened(proxy.url, patience=20) as store:
        proxy.freeze()
        tasks = await under_way(store, store.aperform(put_once, "a"), store.aperform(put_once, "b"))
        proxy.cut()
        proxy.thaw()
        async with asyncio.timeout(60):
            await asyncio.gather(*tasks)
        assert await store.aperform(read) == ["a", "b", "first"]
        assert not store._loop_io._in_flight
        assert store._pool.use()[0] == 0


async def test_the_first_hears_at_once_that_the_second_has_found_the_connection_lost(
    admin: psycopg.Connection[Any], proxy: Proxy
) -> None:
    """libpq closes the socket, and no event comes from it any more."""
    with opened(proxy.url, patience=20) as store:
        proxy.freeze()
        (one,) = await under_way(store, store.aperform(put_once, "a"))
        ((first, _),) = store._loop_io._in_flight.items()
        proxy.cut()
        proxy.thaw()
        # The loop does not come to look at its sockets.
        assert select.select([first.session.socket], [], [], 20)[0]
        second = store._loop_io.start(put_once, partial(large_turn, store))
        assert second is not None
        assert isinstance(second.exception(), psycopg.OperationalError)
        assert first.future.done()
        assert not store._loop_io._in_flight
        await one
        assert await store.aperform(read) == ["a", "first"]


async def test_both_are_given_up_when_no_answer_comes(
    admin: psycopg.Connection[Any], proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(proxy.url, patience=0.1) as store:
        monkeypatch.setattr(session, "STATEMENT_SECONDS", 0.1)
        monkeypatch.setattr(session, "GRACE_SECONDS", 0.1)
        proxy.freeze()
        tasks = await under_way(store, store.aperform(put_once, "a"), store.aperform(put_once, "b"))
        async with asyncio.timeout(30):
            errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(error) for error in errors] == [StoreAway, StoreAway]
        assert not store._loop_io._in_flight
        proxy.thaw()


@pytest.mark.parametrize("cancelled", [0, 1])
async def test_it_lands_though_nobody_waits_for_one_of_them(
    store: PostgresStore, admin: psycopg.Connection[Any], cancelled: int
) -> None:
    with closed_gate(admin):
        tasks = await under_way(store, store.aperform(put, "a", gate=True), store.aperform(put, "b"))
        tasks[cancelled].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await auntil(lambda: not store._loop_io._in_flight)
    assert await store.aperform(read) == ["a", "b", "first"]


def test_a_loop_that_is_closed_leaves_the_connection_to_others(
    store: PostgresStore, admin: psycopg.Connection[Any]
) -> None:
    loop = asyncio.new_event_loop()
    with closed_gate(admin):
        tasks = loop.run_until_complete(
            under_way(store, store.aperform(put, "a", gate=True), store.aperform(put, "b"))
        )
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.close()
        # Both connections for what is urgent are free again.
        for id in ("c", "d"):
            assert asyncio.run(asyncio.wait_for(store.aperform(put, id), 20)) == [id]
        assert store._pool.use()[0] == 0
        assert not store._loop_io._in_flight


async def test_another_loop_does_not_go_behind(store: PostgresStore, admin: psycopg.Connection[Any]) -> None:
    with closed_gate(admin):
        (one,) = await under_way(store, store.aperform(put, "a", gate=True))
        put_there = asyncio.to_thread(lambda: asyncio.run(store.aperform(put, "b")))
        assert await asyncio.wait_for(put_there, 20) == ["b"]
        assert not one.done()
    assert await one == ["a"]


async def test_nothing_goes_behind_where_the_backend_may_change(
    admin: psycopg.Connection[Any], postgres_url: str
) -> None:
    with opened(postgres_url, prepare=False) as store, closed_gate(admin):
        (one,) = await under_way(store, store.aperform(put, "a", gate=True))
        assert await asyncio.wait_for(store.aperform(put, "b"), 20) == ["b"]
        assert not one.done()
        admin.execute("SELECT pg_advisory_unlock_all()")
        assert await one == ["a"]


async def test_nothing_goes_behind_what_prepares_a_statement(
    admin: psycopg.Connection[Any], postgres_url: str
) -> None:
    """If the first fails before that, the second would ask for a statement that is not there."""
    with opened(postgres_url) as store, closed_gate(admin):
        (one,) = await under_way(store, store.aperform(look_behind_gate))
        assert await asyncio.wait_for(store.aperform(put, "a"), 20) == ["a"]
        assert not one.done()
        admin.execute("SELECT pg_advisory_unlock_all()")
        assert await one == [(1,)]


async def test_what_is_large_goes_behind_as_well(
    store: PostgresStore, admin: psycopg.Connection[Any]
) -> None:
    """Its first half waits in the sockets for the server, which is busy with what is ahead."""
    large = "n" * 30_000_000
    with closed_gate(admin):
        one, two = await under_way(
            store, store.aperform(put, "a", gate=True), store.aperform(put_once, "b", large)
        )
    assert await one == ["a"]
    await two
    assert admin.execute("SELECT length(note) FROM perdure_thing ORDER BY id").fetchall() == [
        (None,),
        (30_000_000,),
        (None,),
    ]
    assert await store.aperform(put, "c") == ["c"]


async def test_the_first_does_not_wait_for_the_second_to_be_written(
    store: PostgresStore, admin: psycopg.Connection[Any]
) -> None:
    """Whoever writes much reads meanwhile, perhaps the answer of the other."""
    large = "n" * 30_000_000
    admin.execute("SELECT pg_advisory_lock(8)")
    with closed_gate(admin):
        one, two = await under_way(
            store, store.aperform(put, "a", gate=True), store.aperform(pass_late, "b", large)
        )
        first, second = store._loop_io._in_flight
        admin.execute("SELECT pg_advisory_unlock(7)")
        # The answer of the first is there, and the second is told that it may go on writing.
        assert select.select([first.session.socket], [], [], 20)[0]
        assert second._writes
        second._advance()
        assert first.future.done()
        assert await one == ["a"]
        assert not two.done()
    await two
