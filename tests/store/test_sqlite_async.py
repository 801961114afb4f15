"""Coroutines share the writer with threads and never block their event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.errors import InternalError, Refused, SchemaMissing, StoreClosed
from perdure.ops.op import Op, ask, operation
from perdure.store.sqlite import writer
from perdure.store.sqlite.store import SqliteStore
from tests.harness.waiting import until
from tests.store.notes import (
    Line,
    add,
    add_and_refuse,
    add_failing,
    hold,
    line_length,
    listed,
    listed_twice,
    nonsense,
    note_store,
    notes_in,
    traced,
)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteStore]:
    # A group is also bounded by time, which a busy machine may need for a few calls.
    monkeypatch.setattr(writer, "_LONGEST", 60.0)
    store = note_store(tmp_path / "jobs.db")
    yield store
    store.close()


async def test_a_coroutine_writes_and_reads(store: SqliteStore) -> None:
    assert await store.aperform(add, "note") == "note"
    assert await store.aperform(listed) == ["note"]
    with pytest.raises(Refused):
        await store.aperform(add_and_refuse, "refused")
    with pytest.raises(InternalError):
        await store.aperform(add_failing, "failing")
    with pytest.raises(SchemaMissing):
        await store.aperform(nonsense)
    assert await store.aperform(listed) == ["note"]


async def test_a_program_that_ends_with_the_answer_hears_of_no_error(
    store: SqliteStore, caplog: pytest.LogCaptureFixture
) -> None:
    store._process_state._writer._announcer.stop()
    await store.aperform(add, "note", wake=frozenset(["topic"]))
    store._process_state._writer._thread.stop()
    assert caplog.records == []


async def test_coroutines_that_wait_share_one_commit(store: SqliteStore) -> None:
    entered, released = threading.Event(), threading.Event()
    with traced(store) as ran:
        holding = asyncio.create_task(store.aperform(hold, "holder", entered, released))
        await asyncio.to_thread(entered.wait, 60)
        calls = [asyncio.create_task(store.aperform(add, f"note {number}")) for number in range(50)]
        await asyncio.sleep(0)
        assert line_length(store) == 50
        released.set()
        assert await asyncio.gather(*calls) == [f"note {number}" for number in range(50)]
        await holding
    assert ran.count("COMMIT") == 1


async def test_the_loop_goes_on_while_the_writer_is_busy(store: SqliteStore) -> None:
    line = Line(store)
    call = asyncio.create_task(store.aperform(add, "note"))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not call.done()
    assert line_length(store) == 1
    # Readers do not wait for the writer.
    assert await store.aperform(listed) == []
    line.release()
    assert await call == "note"


async def test_threads_and_coroutines_share_a_group(store: SqliteStore) -> None:
    line = Line(store)
    with traced(store) as ran:
        in_thread = line.perform(add, "thread")
        in_loop = asyncio.create_task(store.aperform(add, "loop"))
        await asyncio.sleep(0)
        line.release()
        assert await in_loop == "loop"
    assert in_thread.result() == "thread"
    assert ran.count("COMMIT") == 1


async def test_a_listener_may_write_however_busy_the_writer_is(store: SqliteStore) -> None:
    def listen(topics: frozenset[str]) -> None:
        for topic in topics:
            store.perform(add, f"heard of {topic}")

    store.subscribe(listen)

    async def write(name: int) -> None:
        for number in range(20):
            await store.aperform(add, f"note {name} {number}", frozenset({f"queue/{name}/{number}"}))

    await asyncio.gather(*[write(name) for name in range(20)])
    await asyncio.to_thread(until, lambda: len(store.perform(listed)) == 800)


async def test_a_coroutine_is_told_of_what_nobody_expected(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(*args: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(store._process_state._group_commit, "write", write)
    with pytest.raises(ZeroDivisionError):
        await store.aperform(add, "note")
    monkeypatch.undo()
    assert await store.aperform(add, "note") == "note"


async def test_a_cancelled_call_leaves_the_line(store: SqliteStore) -> None:
    line = Line(store)
    call = asyncio.create_task(store.aperform(add, "cancelled"))
    await asyncio.sleep(0)
    assert line_length(store) == 1
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert line_length(store) == 0
    line.release()
    assert store.perform(listed) == ["holder"]


async def test_a_call_cancelled_while_it_runs_is_written_all_the_same(store: SqliteStore) -> None:
    entered, released = threading.Event(), threading.Event()
    call = asyncio.create_task(store.aperform(hold, "cancelled", entered, released))
    await asyncio.to_thread(entered.wait, 60)
    behind = asyncio.create_task(store.aperform(add, "behind"))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    released.set()
    assert await behind == "behind"
    assert await store.aperform(listed) == ["cancelled", "behind"]


def test_a_loop_that_was_closed_meanwhile_hurts_nobody(store: SqliteStore) -> None:
    entered, released = threading.Event(), threading.Event()
    loop = asyncio.new_event_loop()
    begin_and_forget(loop, store.aperform(hold, "orphan", entered, released))
    assert entered.wait(60)
    begin_and_forget(loop, store.aperform(add, "orphan in line"))
    assert line_length(store) == 1
    loop.close()
    released.set()
    assert store.perform(add, "next") == "next"
    assert store.perform(listed) == ["orphan", "orphan in line", "next"]


def test_a_thread_may_write_for_a_loop_that_was_closed_meanwhile(store: SqliteStore) -> None:
    line = Line(store)
    loop = asyncio.new_event_loop()
    begin_and_forget(loop, store.aperform(add, "orphan"))
    loop.close()
    behind = line.perform(add, "behind")
    line.release()
    assert line.holder.result() == "holder"
    assert behind.result() == "behind"
    assert store.perform(listed) == ["holder", "orphan", "behind"]


def begin_and_forget(loop: asyncio.AbstractEventLoop, call: Coroutine[Any, Any, str]) -> None:
    task = loop.create_task(call)
    # Else it would complain in the end that nobody waited for it.
    setattr(task, "_log_destroy_pending", False)  # noqa: B010
    loop.run_until_complete(asyncio.sleep(0))


def test_loops_in_several_threads_use_one_store(store: SqliteStore) -> None:
    async def many(name: str) -> list[str]:
        return await asyncio.gather(*[store.aperform(add, f"{name} {number}") for number in range(50)])

    answers: dict[str, list[str]] = {}

    def run(name: str) -> None:
        answers[name] = asyncio.run(many(name))

    threads = [threading.Thread(target=run, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {name: [f"{name} {number}" for number in range(50)] for name in "abc"}
    assert len(store.perform(listed)) == 150


async def test_a_read_sees_one_snapshot(store: SqliteStore) -> None:
    entered, released = threading.Event(), threading.Event()
    reading = asyncio.create_task(store.aperform(listed_twice, entered, released))
    await asyncio.to_thread(entered.wait, 60)
    await store.aperform(add, "meanwhile")
    released.set()
    assert await reading == (0, 0)


async def test_more_reads_than_connections_wait_for_each_other(store: SqliteStore) -> None:
    entered, released = threading.Semaphore(0), threading.Event()

    @operation("read")
    def hold_a_connection() -> Op[int]:
        entered.release()
        assert released.wait(60)
        return len((yield from ask("list")))

    reads = [asyncio.create_task(store.aperform(hold_a_connection)) for _ in range(20)]
    for _ in range(4):
        assert await asyncio.to_thread(entered.acquire, timeout=60)
    assert not entered.acquire(blocking=False)
    assert len(store._process_state._database.connections) == 1 + 4
    released.set()
    assert await asyncio.gather(*reads) == [0] * 20


async def test_a_read_nobody_waits_for_is_not_made(store: SqliteStore) -> None:
    made: list[str] = []

    @operation("read")
    def read(name: str) -> Op[None]:
        made.append(name)
        yield from ask("list")

    entered, released = threading.Event(), threading.Event()
    busy = [asyncio.create_task(store.aperform(listed_twice, entered, released)) for _ in range(4)]
    unwanted = asyncio.create_task(store.aperform(read, "unwanted"))
    wanted = asyncio.create_task(store.aperform(read, "wanted"))
    await asyncio.to_thread(entered.wait, 60)
    unwanted.cancel()
    with pytest.raises(asyncio.CancelledError):
        await unwanted
    released.set()
    await asyncio.gather(*busy, wanted)
    assert made == ["wanted"]


async def test_after_close_everything_is_refused(store: SqliteStore) -> None:
    await store.aperform(add, "note")
    await store.aperform(listed)
    await asyncio.to_thread(store.close)
    for refused in (store.aperform(add, "late"), store.aperform(listed)):
        with pytest.raises(StoreClosed):
            await refused


async def test_close_ends_every_thread(tmp_path: Path) -> None:
    store = note_store(tmp_path / "other.db")
    await asyncio.gather(*[store.aperform(listed) for _ in range(10)])
    await store.aperform(add, "note")
    await asyncio.to_thread(store.close)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("perdure-sqlite")]


def test_a_store_that_nobody_closed_lets_go_of_everything(tmp_path: Path) -> None:
    store = note_store(tmp_path / "other.db")
    asyncio.run(_use(store))
    database = store._process_state._database
    assert database.connections
    del store
    assert not database.connections
    until(lambda: not [t for t in threading.enumerate() if t.name.startswith("perdure-sqlite")])
    assert notes_in(tmp_path / "other.db") == ["note"]


async def _use(store: SqliteStore) -> None:
    await store.aperform(add, "note")
    await store.aperform(listed)
