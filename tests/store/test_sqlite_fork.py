"""After a fork at any moment, the store works in parent and child."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from perdure import App
from perdure.errors import UnsupportedDatabase
from perdure.store.sqlite import fork
from perdure.store.sqlite.store import SqliteStore
from perdure.store.store import Store
from tests.harness.waiting import until
from tests.store.notes import (
    add,
    hold,
    hold_the_lock,
    line_length,
    listed,
    listed_twice,
    note_store,
    notes_in,
)

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = note_store(tmp_path / "jobs.db")
    yield store
    store.close()


def forked(work: Callable[[], object], *, fork: Callable[[], int] = os.fork) -> int:
    """The pid of a child that does the work and ends, with status 0 if it went well."""
    with warnings.catch_warnings():
        # Python 3.12 warns of forks beside threads, which are the point here.
        warnings.simplefilter("ignore", DeprecationWarning)
        if child := fork():
            return child
    status = 1
    try:
        work()
        status = 0
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(status)


def went_well(child: int) -> bool:
    return os.waitpid(child, 0)[1] == 0


def test_parent_and_child_go_on(store: SqliteStore) -> None:
    store.perform(add, "before")
    assert store.perform(listed) == ["before"]
    child = forked(lambda: (store.perform(add, "child"), store.perform(listed)))
    assert went_well(child)
    store.perform(add, "parent")
    assert store.perform(listed) == ["before", "child", "parent"]


def test_the_child_holds_locks_of_its_own(store: SqliteStore, tmp_path: Path) -> None:
    """Else the parent, closing last as it believes, would take the WAL away under the child."""
    store.perform(add, "before")
    store.perform(listed)
    told, tell = os.pipe()
    heard, answer = os.pipe()

    def work() -> None:
        store.perform(add, "child 1")
        os.write(answer, b"!")
        os.read(told, 1)
        store.perform(add, "child 2")
        store.perform(listed)

    child = forked(work)
    os.read(heard, 1)
    store.perform(add, "parent")
    store.close()
    assert (tmp_path / "jobs.db-wal").exists()
    os.write(tell, b"!")
    assert went_well(child)
    assert notes_in(tmp_path / "jobs.db") == ["before", "child 1", "parent", "child 2"]


def test_forks_while_threads_write_and_read(store: SqliteStore, tmp_path: Path) -> None:
    stop = threading.Event()
    written: list[list[str]] = [[], [], []]

    def write(number: int) -> None:
        while not stop.is_set():
            written[number].append(store.perform(add, f"thread {number} {len(written[number])}"))
            store.perform(listed)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    children = []
    for number in range(15):
        before = len(written[0])
        until(partial(lambda before: len(written[0]) > before, before))
        children.append(forked(partial(store.perform, add, f"child {number}")))
    assert all([went_well(child) for child in children])
    stop.set()
    for thread in threads:
        thread.join()
    store.close()
    expected = [note for notes in written for note in notes] + [f"child {number}" for number in range(15)]
    assert sorted(notes_in(tmp_path / "jobs.db")) == sorted(expected)


def test_a_fork_waits_for_the_end_of_a_write(store: SqliteStore) -> None:
    entered, released = threading.Event(), threading.Event()
    holder = threading.Thread(target=store.perform, args=(hold, "holder", entered, released))
    holder.start()
    assert entered.wait(60)
    forking = threading.Thread(target=lambda: children.append(forked(lambda: store.perform(add, "child"))))
    children: list[int] = []
    forking.start()
    waiting = threading.Thread(target=store.perform, args=(add, "waiting"))
    waiting.start()
    until(lambda: line_length(store) == 1)
    assert children == []
    released.set()
    for thread in (holder, forking, waiting):
        thread.join(60)
    assert went_well(children[0])
    notes = store.perform(listed)
    assert sorted(notes) == ["child", "holder", "waiting"]


def test_a_fork_does_not_wait_for_who_waits_for_another_program(store: SqliteStore, tmp_path: Path) -> None:
    with hold_the_lock(tmp_path / "jobs.db") as holder:
        waiting = threading.Thread(target=store.perform, args=(add, "waiting"))
        waiting.start()
        until(lambda: store._process_state._writer._write_queue._led)
        assert went_well(forked(lambda: store.perform(listed)))
        holder.kill()
    waiting.join(60)
    assert store.perform(listed) == ["waiting"]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_that_ends_as_programs_do(store: SqliteStore) -> None:
    """It finalises everything, and nothing of that is its parent's."""
    store.perform(add, "before")
    store.perform(listed)
    child = multiprocessing.get_context("fork").Process(target=store.perform, args=(add, "child"))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert store.perform(listed) == ["before", "child"]


def test_a_grandchild_works_too(store: SqliteStore) -> None:
    store.perform(add, "parent")

    def work() -> None:
        store.perform(add, "child")
        assert went_well(forked(lambda: store.perform(add, "grandchild")))
        store.perform(add, "child again")

    assert went_well(forked(work))
    assert store.perform(listed) == ["parent", "child", "grandchild", "child again"]


def test_a_fork_before_the_first_use(tmp_path: Path) -> None:
    note_store(tmp_path / "jobs.db").close()
    store = note_store(tmp_path / "jobs.db")
    assert went_well(forked(lambda: store.perform(add, "child")))
    assert store.perform(listed) == ["child"]
    store.close()


def test_a_fork_behind_pythons_back_is_refused(store: SqliteStore) -> None:
    """Nobody closed the parent's connections: to open the file would be to trust locks that are not there."""
    store.perform(add, "before")

    def work() -> None:
        with pytest.raises(UnsupportedDatabase, match="forked"):
            store.perform(add, "child")
        inherited = store._process_states[os.getppid()]
        (connection,) = inherited._database.connections
        references = sys.getrefcount(connection)
        # At the end of the program, say: what it inherited must outlive even that.
        inherited.abandon()
        assert connection in inherited._database.connections
        assert sys.getrefcount(connection) == references + 1

    child = forked(work, fork=ctypes.PyDLL(None).fork)
    assert went_well(child)
    store.perform(add, "after")
    assert store.perform(listed) == ["before", "after"]


def test_a_fork_does_not_wait_for_ever(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork, "_PATIENCE", 0.1)
    entered, released = threading.Event(), threading.Event()
    reader = threading.Thread(target=store.perform, args=(listed_twice, entered, released))
    reader.start()
    assert entered.wait(60)

    def work() -> None:
        with pytest.raises(UnsupportedDatabase):
            store.perform(add, "child")

    child = forked(work)
    released.set()
    reader.join(60)
    assert went_well(child)
    assert store.perform(add, "parent") == "parent"


def test_a_database_in_memory_stays_with_the_parent() -> None:
    store = note_store(":memory:")
    store.perform(add, "parent")

    def work() -> None:
        with pytest.raises(UnsupportedDatabase):
            store.perform(listed)

    assert went_well(forked(work))
    assert store.perform(listed) == ["parent"]
    store.close()


def test_an_app_that_was_being_opened_is_opened_by_the_child(tmp_path: Path) -> None:
    """The thread that has the lock of the parent's does not live in the child."""
    app = App(f"sqlite:///{tmp_path / 'jobs.db'}")
    opening, opened = threading.Event(), threading.Event()

    def open_slowly() -> None:
        with app._opening:
            opening.set()
            opened.wait()

    thread = threading.Thread(target=open_slowly)
    thread.start()
    opening.wait()
    child = forked(lambda: (signal.alarm(30), app.list_jobs()))  # stuck, it would outlive us
    well = went_well(child)
    opened.set()
    thread.join()
    app.close()
    assert well


def test_a_child_forked_while_an_attribute_is_made_makes_its_own(tmp_path: Path) -> None:
    """That of another app: the lock of functools.cached_property in Python 3.11 belongs to all."""
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    making, made = threading.Event(), threading.Event()

    class Slow(App):
        @property
        def store(self) -> Store:
            making.set()
            made.wait()
            return super().store

    slow, app = Slow(url), App(url)
    thread = threading.Thread(target=lambda: slow.operations)
    thread.start()
    making.wait()
    child = forked(lambda: (signal.alarm(30), app.operations.expire()))  # stuck, it would outlive us
    well = went_well(child)
    made.set()
    thread.join()
    slow.close()
    assert well
