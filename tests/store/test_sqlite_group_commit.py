"""Waiting calls share a commit, and do not affect each other."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from perdure.errors import InternalError, Refused, StoreClosed, StoreFull
from perdure.ops.op import Op, announce, ask, operation
from perdure.store.sqlite import writer
from perdure.store.sqlite.pending_call import PendingCall
from perdure.store.sqlite.store import SqliteStore
from tests.harness.waiting import until
from tests.store.notes import (
    Line,
    add,
    add_and_refuse,
    add_failing,
    add_unless,
    add_urgently,
    fill,
    line_length,
    listed,
    make_trigger,
    note_store,
    traced,
    write_connection,
)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteStore]:
    # A group is also bounded by time, which a busy machine may need for a few calls.
    monkeypatch.setattr(writer, "_LONGEST", 60.0)
    store = note_store(tmp_path / "jobs.db")
    yield store
    store.close()


def commits(ran: list[str]) -> int:
    return ran.count("COMMIT")


def test_a_lone_call_costs_three_statements_and_no_thread(store: SqliteStore) -> None:
    threads = threading.active_count()
    where: list[int] = []

    @operation("write")
    def here() -> Op[None]:
        where.append(threading.get_ident())
        yield from ask("insert", text="note")

    with traced(store) as ran:
        store.perform(here)
    assert [statement.split()[0] for statement in ran] == ["BEGIN", "INSERT", "COMMIT"]
    assert where == [threading.get_ident()]
    assert threading.active_count() == threads


def test_calls_that_wait_share_one_commit(store: SqliteStore) -> None:
    line = Line(store)
    with traced(store) as ran:
        calls = [line.perform(add, f"note {number}") for number in range(20)]
        line.release()
    assert [call.result() for call in calls] == [f"note {number}" for number in range(20)]
    assert commits(ran) == 1
    assert len(store.perform(listed)) == 21


def test_nobody_is_answered_before_the_commit(store: SqliteStore) -> None:
    line = Line(store)
    answered_at_commit: list[bool] = []
    call = line.perform(add, "note")
    write_connection(store).set_trace_callback(
        lambda statement: answered_at_commit.append(call.done()) if statement == "COMMIT" else None
    )
    line.release()
    call.result()
    assert answered_at_commit == [False]


def test_a_refusal_takes_back_itself_alone(store: SqliteStore) -> None:
    line = Line(store)
    with traced(store) as ran:
        before = line.perform(add, "before")
        refused = line.perform(add_and_refuse, "refused")
        after = line.perform(add, "after")
        line.release()
    with pytest.raises(Refused, match="Not today"):
        refused.result()
    assert (before.result(), after.result()) == ("before", "after")
    assert store.perform(listed) == ["holder", "before", "after"]
    assert commits(ran) == 1


def test_a_refusal_of_the_first_leaves_no_transaction(store: SqliteStore) -> None:
    with pytest.raises(Refused):
        store.perform(add_and_refuse, "refused")
    assert not write_connection(store).in_transaction
    assert store.perform(add, "next") == "next"
    assert store.perform(listed) == ["next"]


def test_after_an_error_of_sqlite_each_runs_alone(store: SqliteStore) -> None:
    line = Line(store)
    with traced(store) as ran:
        before = line.perform(add, "before")
        failing = line.perform(add_failing, "failing")
        after = line.perform(add, "after")
        line.release()
    with pytest.raises(InternalError, match="SQLite refused a statement"):
        failing.result()
    assert (before.result(), after.result()) == ("before", "after")
    assert store.perform(listed) == ["holder", "before", "after"]
    # The holder, the one before, the one after.
    assert commits(ran) == 3


def test_a_transaction_that_sqlite_ended_is_run_again_alone(store: SqliteStore) -> None:
    store.perform(make_trigger)
    line = Line(store)
    before = line.perform(add, "before")
    vetoed = line.perform(add, "veto")
    after = line.perform(add, "after")
    line.release()
    with pytest.raises(InternalError) as raised:
        vetoed.result()
    assert raised.value.code == "store.refused"
    assert (before.result(), after.result()) == ("before", "after")
    assert store.perform(listed) == ["holder", "before", "after"]


def test_a_full_disk_fails_only_what_does_not_fit(store: SqliteStore) -> None:
    (pages,) = write_connection(store).execute("PRAGMA page_count").fetchone()
    write_connection(store).execute(f"PRAGMA max_page_count = {pages + 10}")
    line = Line(store)
    small = line.perform(add, "small")
    large = line.perform(fill, "large", 200_000)
    last = line.perform(add, "last")
    line.release()
    with pytest.raises(StoreFull):
        large.result()
    assert (small.result(), last.result()) == ("small", "last")
    assert store.perform(listed) == ["holder", "small", "last"]


def test_a_commit_that_fails_is_nobodys_fault_in_particular(store: SqliteStore) -> None:
    connection = write_connection(store)
    connection.execute("CREATE TABLE parent (id INTEGER PRIMARY KEY)")
    connection.execute("CREATE TABLE child (id REFERENCES parent DEFERRABLE INITIALLY DEFERRED)")
    connection.execute(
        "CREATE TRIGGER orphan AFTER INSERT ON note WHEN new.text = 'orphan'"
        " BEGIN INSERT INTO child VALUES (1); END"
    )
    connection.execute("PRAGMA foreign_keys = ON")
    line = Line(store)
    before = line.perform(add, "before")
    orphan = line.perform(add, "orphan")
    after = line.perform(add, "after")
    line.release()
    with pytest.raises(InternalError):
        orphan.result()
    assert (before.result(), after.result()) == ("before", "after")
    assert store.perform(listed) == ["holder", "before", "after"]


def test_a_refusal_is_decided_again_when_its_reason_was_rolled_back(store: SqliteStore) -> None:
    runs: list[int] = []

    @operation("write")
    def add_once() -> Op[None]:
        """Goes well in the group, which then breaks, and refuses when it is run alone."""
        runs.append(1)
        yield from ask("insert", text="reason")
        yield from announce(frozenset({"queue/a"}))
        if len(runs) > 1:
            raise Refused("Only once.")

    heard: list[frozenset[str]] = []
    store.subscribe(heard.append)
    line = Line(store)
    reason = line.perform(add_once)
    refused = line.perform(add_unless, "refused", "reason")
    failing = line.perform(add_failing, "failing")
    line.release()
    assert isinstance(reason.exception(), Refused)
    assert isinstance(failing.exception(), InternalError)
    assert refused.result() == "refused"
    assert heard == []


def test_a_broken_constraint_is_tried_again(store: SqliteStore) -> None:
    store.perform(add, "taken")
    texts = iter(["taken", "taken", "free"])

    @operation("write")
    def add_next() -> Op[str]:
        text = next(texts)
        yield from ask("insert", text=text)
        return text

    assert store.perform(add_next) == "free"


def test_a_broken_constraint_is_not_tried_for_ever(store: SqliteStore) -> None:
    store.perform(add, "taken")
    runs: list[int] = []

    @operation("write")
    def add_taken() -> Op[None]:
        runs.append(1)
        yield from ask("insert", text="taken")

    with pytest.raises(InternalError) as raised:
        store.perform(add_taken)
    assert raised.value.code == "store.constraint"
    assert "taken" not in str(raised.value)
    assert 5 <= len(runs) <= 6


def test_urgent_calls_go_first(store: SqliteStore) -> None:
    line = Line(store)
    calls = [
        line.perform(add, "first"),
        line.perform(add, "second"),
        line.perform(add_urgently, "urgent"),
        line.perform(add_urgently, "urgent too"),
    ]
    line.release()
    for call in calls:
        call.result()
    assert store.perform(listed) == ["holder", "urgent", "urgent too", "first", "second"]


def test_a_group_is_bounded_by_number(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_MOST_CALLS", 4)
    line = Line(store)
    with traced(store) as ran:
        calls = [line.perform(add, f"note {number}") for number in range(11)]
        line.release()
    for call in calls:
        call.result()
    assert commits(ran) == 3


def test_a_group_is_bounded_by_time(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_LONGEST", 0.0)
    line = Line(store)
    with traced(store) as ran:
        calls = [line.perform(add, f"note {number}") for number in range(5)]
        line.release()
    for call in calls:
        call.result()
    # The holder with one follower, then two, two.
    assert commits(ran) == 3


def test_listeners_hear_of_a_group_once_and_after_its_commit(store: SqliteStore) -> None:
    heard: list[tuple[frozenset[str], list[str]]] = []
    unsubscribe = store.subscribe(lambda topics: heard.append((topics, store.perform(listed))))
    line = Line(store)
    calls = [
        line.perform(add, "one", frozenset({"queue/a"})),
        line.perform(add_and_refuse, "two", frozenset({"queue/b"})),
        line.perform(add, "three", frozenset({"queue/c"})),
    ]
    line.release()
    for call in calls:
        call.exception()
    assert heard == [(frozenset({"queue/a", "queue/c"}), ["holder", "one", "three"])]
    unsubscribe()
    store.perform(add, "four", frozenset({"queue/a"}))
    assert len(heard) == 1


def test_a_listener_may_write(store: SqliteStore) -> None:
    def listen(topics: frozenset[str]) -> None:
        store.perform(add, "by the listener")

    store.subscribe(listen)
    store.perform(add, "by the caller", frozenset({"queue/a"}))
    assert store.perform(listed) == ["by the caller", "by the listener"]


def test_a_listener_that_fails_hurts_nobody(store: SqliteStore) -> None:
    def listen(topics: frozenset[str]) -> None:
        raise RuntimeError("deaf")

    store.subscribe(listen)
    assert store.perform(add, "note", frozenset({"queue/a"})) == "note"


def test_each_run_of_an_operation_has_one_time_of_its_own(tmp_path: Path) -> None:
    ticks = iter(range(100, 200))
    store = note_store(tmp_path / "jobs.db", clock=lambda: next(ticks))

    @operation("write")
    def add_two() -> Op[None]:
        yield from ask("insert", text="one")
        yield from ask("insert", text="two")

    @operation("read")
    def times() -> Op[list[int]]:
        rows = yield from ask("times")
        return [at for (at,) in rows]

    store.perform(add_two)
    store.perform(add, "three")
    assert store.perform(times) == [101, 101, 102]
    store.close()


class Alarm(Exception):
    """What a signal's handler raises."""


Interrupt: TypeAlias = Callable[[Callable[[], object]], None]


@pytest.fixture
def interrupt() -> Iterator[Interrupt]:
    """Have a signal's handler raise in the main thread once a condition holds."""

    def handler(number: int, frame: object) -> None:
        raise Alarm

    def interrupt_when(condition: Callable[[], object]) -> None:
        def wait() -> None:
            until(condition)
            os.kill(os.getpid(), signal.SIGALRM)

        thread = threading.Thread(target=wait)
        threads.append(thread)
        thread.start()

    threads: list[threading.Thread] = []
    before = signal.signal(signal.SIGALRM, handler)
    yield interrupt_when
    for thread in threads:
        thread.join()
    signal.signal(signal.SIGALRM, before)


def test_a_signal_ends_the_call_of_the_main_thread_alone(store: SqliteStore, interrupt: Interrupt) -> None:
    entered, never = threading.Event(), threading.Event()

    @operation("write")
    def wait() -> Op[None]:
        yield from ask("insert", text="interrupted")
        entered.set()
        never.wait(60)

    others = [threading.Thread(target=add_behind, args=(store, entered, f"note {n}")) for n in range(3)]
    for other in others:
        other.start()
    interrupt(lambda: line_length(store) == 3)
    with pytest.raises(Alarm):
        store.perform(wait)
    for other in others:
        other.join(60)
    notes = store.perform(listed)
    assert sorted(notes) == ["note 0", "note 1", "note 2"]


def add_behind(store: SqliteStore, entered: threading.Event, text: str) -> None:
    entered.wait(60)
    store.perform(add, text)


def test_the_main_thread_writes_for_nobody_else(store: SqliteStore) -> None:
    @operation("write")
    def wait_for_others() -> Op[None]:
        yield from ask("insert", text="main")
        for number in range(3):
            threads[number].start()
        until(lambda: line_length(store) == 3)

    threads = [threading.Thread(target=store.perform, args=(add, f"note {number}")) for number in range(3)]
    with traced(store) as ran:
        store.perform(wait_for_others)
        for thread in threads:
            thread.join(60)
    # The main thread's own, then one for the three.
    assert commits(ran) == 2


def test_whoever_is_stopped_puts_the_others_back(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """By an exception that somebody throws into a thread, say: nothing else could, outside the main one."""
    group_commit = store._process_state._group_commit
    run_apart = group_commit._run_apart

    def stop(connection: sqlite3.Connection, call: PendingCall[Any]) -> None:
        monkeypatch.setattr(group_commit, "_run_apart", run_apart)
        run_apart(connection, call)
        raise SystemExit

    line = Line(store)
    calls = [line.perform(add, f"note {number}") for number in range(3)]
    monkeypatch.setattr(group_commit, "_run_apart", stop)
    line.release()
    with pytest.raises(SystemExit):
        line.holder.result()
    assert [call.result() for call in calls] == ["note 0", "note 1", "note 2"]
    assert store.perform(listed) == ["note 0", "note 1", "note 2"]


def test_a_signal_takes_a_waiting_call_out_of_the_line(store: SqliteStore, interrupt: Interrupt) -> None:
    line = Line(store)
    interrupt(lambda: line_length(store) == 1)
    with pytest.raises(Alarm):
        store.perform(add, "interrupted")
    assert line_length(store) == 0
    line.release()
    line.holder.result()
    store.perform(add, "next")
    assert store.perform(listed) == ["holder", "next"]


def test_the_lead_passes_on_from_whoever_gave_up(
    store: SqliteStore, interrupt: Interrupt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heir of the lead is interrupted before it learns that it leads."""
    monkeypatch.setattr(writer, "_MOST_CALLS", 1)
    lanes = store._process_state._writer._write_queue
    leave, heirs, interrupted = lanes.leave, list[object](), threading.Event()

    def leave_slowly(call: PendingCall[Any]) -> PendingCall[Any] | None:
        heir = leave(call)
        if heir is not None and not heirs:
            heirs.append(heir)
            assert interrupted.wait(60)
        return heir

    monkeypatch.setattr(lanes, "leave", leave_slowly)
    line = Line(store)
    releasing = threading.Thread(target=release_behind, args=(store, line))
    releasing.start()
    interrupt(lambda: heirs)
    with pytest.raises(Alarm):
        store.perform(add, "heir")
    interrupted.set()
    releasing.join(60)
    assert store.perform(add, "next") == "next"
    assert store.perform(listed) == ["holder", "next"]


def release_behind(store: SqliteStore, line: Line) -> None:
    until(lambda: line_length(store) == 1)
    line.release()


def test_closing_finishes_who_is_in_line_and_refuses_who_comes(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_MOST_CALLS", 1)
    line = Line(store)
    waiting = [line.perform(add, f"waiting {number}") for number in range(10)]
    connections = store._process_state._database.connections
    closing = threading.Thread(target=store.close)
    closing.start()
    until(lambda: store._closed)
    with pytest.raises(StoreClosed):
        store.perform(add, "late")
    line.release()
    closing.join(60)
    assert not connections
    assert [call.result(0) for call in waiting] == [f"waiting {number}" for number in range(10)]
    store.close()
    with pytest.raises(StoreClosed):
        store.perform(listed)


def test_a_connection_that_cannot_roll_back_is_replaced(store: SqliteStore) -> None:
    """As after an I/O error that left SQLite inside a transaction."""

    class Stuck(sqlite3.Connection):
        @property
        def in_transaction(self) -> bool:
            return True

    group_commit = store._process_state._group_commit
    write_connection(store).close()
    group_commit._connection = stuck = sqlite3.connect(
        group_commit._database.path, factory=Stuck, isolation_level=None, check_same_thread=False
    )
    with pytest.raises(InternalError):
        store.perform(add_failing, "failing")
    assert store.perform(add, "note") == "note"
    assert write_connection(store) is not stuck
