"""Another process's commit is noticed at once, our own is not reported twice, and a watcher leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from perdure.errors import StoreClosed
from perdure.ops.topics import ANYTHING
from perdure.store import listener_thread
from perdure.store.sqlite import inotify, wal_watcher
from perdure.store.sqlite.inotify import FileWatch
from perdure.store.sqlite.store import SqliteStore
from tests.harness.processes import conversation
from tests.harness.waiting import until
from tests.store.notes import STATEMENTS, add, listed, note_store, run_program
from tests.store.test_sqlite_fork import forked, went_well

SOMETHING = frozenset([ANYTHING])

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has inotify")


@pytest.fixture(params=[pytest.param("inotify", marks=linux), "polling"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "polling":
        monkeypatch.setattr(wal_watcher, "FileWatch", refuse)
    # Or a look now and then would do what the watcher is for.
    monkeypatch.setattr(wal_watcher, "_IDLE", 3600.0)
    monkeypatch.setattr(listener_thread, "_LONGEST_WAIT", 3600.0)
    way: str = request.param
    return way


def refuse(path: str) -> None:
    raise OSError("no more watches")


@contextmanager
def other_process(path: object) -> Iterator[Callable[[str], None]]:
    """A program on the same file; call it to let it write a note."""
    script = """
import sys
from tests.store.notes import add, note_store
store = note_store(sys.argv[1])
print("ready", flush=True)
for line in sys.stdin:
    print(store.perform(add, line.strip()), flush=True)
store.close()
"""
    with conversation("-c", script, path) as tell:

        def write(note: str) -> None:
            assert tell(note) == note

        yield write


def listener_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "perdure-sqlite-listener"]


def listening(store: SqliteStore) -> list[frozenset[str]]:
    """What is heard from here on."""
    heard: list[frozenset[str]] = []
    store.listen(heard.append)
    # Something may have happened before it listened.
    until(lambda: SOMETHING in heard)
    heard.clear()
    return heard


def test_each_commit_of_another_process_is_heard(way: str, tmp_path: Path) -> None:
    store = note_store(tmp_path / "jobs.db")
    with other_process(tmp_path / "jobs.db") as write:
        heard = listening(store)
        for number in range(10):
            write(f"note {number}")
            until(lambda: heard)
            assert store.perform(listed)[-1] == f"note {number}"
            assert set(heard) == {SOMETHING}
            heard.clear()
    store.close()


def test_what_was_heard_can_be_seen(way: str, tmp_path: Path) -> None:
    """The write to the WAL comes before the end of the commit; heard is only the end."""
    store = note_store(tmp_path / "jobs.db")
    seen: list[int] = []
    with other_process(tmp_path / "jobs.db") as write:
        listening(store)
        store.listen(lambda topics: seen.append(len(store.perform(listed))))
        for number in range(20):
            write(f"note {number}")
            until(partial(lambda number: number + 1 in seen, number))
    assert seen == sorted(seen)
    store.close()


def test_our_own_commits_are_told_once(way: str, tmp_path: Path) -> None:
    store = note_store(tmp_path / "jobs.db")
    with other_process(tmp_path / "jobs.db") as write:
        heard = listening(store)
        for number in range(20):
            store.perform(add, f"own {number}", wake=frozenset([f"topic {number}"]))
        asyncio.run(store.aperform(add, "own", wake=frozenset(["topic"])))
        until(lambda: frozenset(["topic"]) in heard)
        own = [frozenset([f"topic {number}"]) for number in range(20)] + [frozenset(["topic"])]
        write("theirs")
        until(lambda: SOMETHING in heard)
        assert heard[: len(own)] == own
        assert set(heard[len(own) :]) == {SOMETHING}
    store.close()


def test_a_database_may_come_later(way: str, tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "jobs.db"), statements=STATEMENTS)
    heard: list[frozenset[str]] = []
    end = store.listen(heard.append)
    with other_process(tmp_path / "jobs.db") as write:
        for number in range(3):
            heard.clear()
            write(f"note {number}")
            until(lambda: heard)
    assert not (tmp_path / "jobs.db-wal").exists(), "the other was the last to close it"
    heard.clear()
    with other_process(tmp_path / "jobs.db") as write:
        write("in a new WAL")
        until(lambda: heard)
        heard.clear()
        write("again")
        until(lambda: heard)
    end()
    store.close()


@linux
def test_a_file_is_watched_that_comes_and_goes(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db-wal"
    watch = FileWatch(str(path))
    assert not watch.changed()
    path.write_bytes(b"new")
    assert watch.changed()
    with path.open("ab") as file:
        file.write(b"more")
    assert watch.changed()
    (tmp_path / "jobs.db").write_bytes(b"another file")
    assert not watch.changed()
    path.unlink()
    path.write_bytes(b"made anew")
    watch.changed()
    with path.open("r+b") as file:
        file.truncate(0)
    assert watch.changed()
    (tmp_path / "moved").write_bytes(b"")
    watch.changed()
    (tmp_path / "moved").rename(path)
    assert watch.changed()
    with path.open("ab") as file:
        file.write(b"more")
    assert watch.changed()
    watch.close()


@linux
def test_a_file_that_cannot_be_watched_is_polled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoMoreWatches:
        def inotify_init1(self, flags: int) -> int:
            return os.open(os.devnull, os.O_RDONLY)

        def inotify_add_watch(self, *args: object) -> int:
            return -1

    monkeypatch.setattr(inotify, "_libc", NoMoreWatches)
    files = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError):  # noqa: PT011 - which one is the system's choice
        FileWatch(str(tmp_path / "jobs.db-wal"))
    assert len(os.listdir("/proc/self/fd")) == files
    store = note_store(tmp_path / "jobs.db")
    with other_process(tmp_path / "jobs.db") as write:
        heard = listening(store)
        write("note")
        until(lambda: heard)
    store.close()


def test_a_listener_that_fails_disturbs_nobody(
    way: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = note_store(tmp_path / "jobs.db")

    def fail(topics: frozenset[str]) -> None:
        raise ValueError("mine")

    heard = listening(store)
    store.listen(fail)
    with other_process(tmp_path / "jobs.db") as write:
        for note in ("one", "two"):
            heard.clear()
            write(note)
            until(lambda: heard)
    store.close()
    assert "A listener failed" in caplog.text


def test_whoever_has_left_hears_nothing(way: str, tmp_path: Path) -> None:
    store = note_store(tmp_path / "jobs.db")
    heard = listening(store)
    left: list[frozenset[str]] = []
    end = store.listen(left.append)
    end()
    end()
    with other_process(tmp_path / "jobs.db") as write:
        write("theirs")
        until(lambda: heard)
    store.perform(add, "own", wake=frozenset(["topic"]))
    assert left == []
    store.close()


def test_closing_ends_the_thread_and_the_wal(way: str, tmp_path: Path) -> None:
    store = note_store(tmp_path / "jobs.db")
    listening(store)
    assert len(listener_threads()) == 1
    store.close()
    until(lambda: not listener_threads())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["jobs.db"]
    with pytest.raises(StoreClosed):
        store.listen(print)


@linux
def test_an_ear_leaves_no_file_open(tmp_path: Path) -> None:
    code = """
        import os, sys, threading
        from tests.harness.waiting import until
        from tests.store.notes import note_store
        note_store(sys.argv[1]).close()
        before = os.listdir("/proc/self/fd")
        store, heard = note_store(sys.argv[1]), []
        store.listen(heard.append)
        until(lambda: heard)
        store.close()
        until(lambda: threading.active_count() == 1)
        assert os.listdir("/proc/self/fd") == before
    """
    assert run_program(code, tmp_path / "jobs.db") == ""


def test_the_thread_ends_when_nobody_has_listened_for_a_while(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener_thread, "LINGER_SECONDS", 0.0)
    monkeypatch.setattr(listener_thread, "_LONGEST_WAIT", 0.01)
    store = note_store(tmp_path / "jobs.db")
    first, second = store.listen(print), store.listen(print)
    first()
    assert len(listener_threads()) == 1
    second()
    until(lambda: not listener_threads())
    with other_process(tmp_path / "jobs.db") as write:
        heard: list[frozenset[str]] = []
        store.listen(heard.append)
        write("note")
        until(lambda: heard)
    assert len(listener_threads()) == 1
    store.close()


def test_a_store_that_is_forgotten_lets_go_of_its_thread(way: str, tmp_path: Path) -> None:
    store = note_store(tmp_path / "jobs.db")
    listening(store)
    del store
    gc.collect()
    until(lambda: not listener_threads())


def test_a_program_that_listens_ends_at_once(tmp_path: Path) -> None:
    code = """
        import sys
        from tests.harness.waiting import until
        from tests.store.notes import note_store
        store = note_store(sys.argv[1])
        store.listen(print)
    """
    run_program(code, tmp_path / "jobs.db")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_listens_anew_and_the_parent_goes_on(way: str, tmp_path: Path) -> None:
    store = note_store(tmp_path / "jobs.db")
    heard = listening(store)
    told, tell = os.pipe()
    turn, give_turn = os.pipe()

    def work() -> None:
        heard.clear()
        there = listening(store)
        os.write(tell, b"!")
        until(lambda: there)
        assert heard == [], "who listened in the parent does not here"
        os.write(tell, b"!")
        os.read(turn, 1)
        store.perform(add, "child")

    child = forked(work)
    os.read(told, 1)
    store.perform(add, "parent")
    os.read(told, 1)
    heard.clear()
    os.write(give_turn, b"!")
    assert went_well(child)
    until(lambda: heard)
    assert store.perform(listed) == ["parent", "child"]
    store.close()


def test_nobody_else_writes_to_memory() -> None:
    store = note_store(":memory:")
    heard: list[frozenset[str]] = []
    end = store.listen(heard.append)
    store.perform(add, "note", wake=frozenset(["topic"]))
    end()
    store.perform(add, "another", wake=frozenset(["topic"]))
    assert heard == [{"topic"}]
    assert listener_threads() == []
    store.close()
