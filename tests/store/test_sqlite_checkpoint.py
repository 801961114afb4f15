"""The WAL stays short, and is moved into the database only while nobody can commit."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from perdure.store.sqlite import checkpoint
from perdure.store.sqlite.connect import LONGEST_WAL
from perdure.store.sqlite.store import SqliteStore
from tests.store.notes import add, fill, listed_twice, note_store, notes_in, write_connection

MEGABYTE = 1024 * 1024


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteStore]:
    # At every commit, however fast they follow one another.
    monkeypatch.setattr(checkpoint, "_INTERVAL", 0.0)
    store = note_store(tmp_path / "jobs.db", synchronous="normal")
    yield store
    store.close()


def wal_size(tmp_path: Path) -> int:
    return os.stat(tmp_path / "jobs.db-wal").st_size


def write(store: SqliteStore, numbers: Iterator[int], megabytes: float) -> None:
    # The text and its index: each note is written twice.
    for _ in range(int(megabytes * 10)):
        store.perform(fill, f"note {next(numbers)} ", MEGABYTE // 20)


def test_the_wal_stays_short_under_load(store: SqliteStore, tmp_path: Path) -> None:
    numbers, longest = count(), 0
    for _ in range(300):
        write(store, numbers, 0.1)
        longest = max(longest, wal_size(tmp_path))
    assert LONGEST_WAL < longest < LONGEST_WAL + MEGABYTE
    assert len(notes_in(tmp_path / "jobs.db")) == 300


def test_the_wal_stays_short_when_threads_write(tmp_path: Path) -> None:
    """With the interval between two looks as it is."""
    store, longest, stop = note_store(tmp_path / "jobs.db", synchronous="normal"), [0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.001):
            longest.append(wal_size(tmp_path))

    def work(name: int) -> None:
        for number in range(60):
            store.perform(fill, f"note {name} {number} ", MEGABYTE // 20)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(5)]
    watching = threading.Thread(target=watch)
    for thread in (watching, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    watching.join()
    store.close()
    assert max(longest) < 4 * LONGEST_WAL
    assert len(notes_in(tmp_path / "jobs.db")) == 300


def test_a_short_wal_is_left_alone(store: SqliteStore, tmp_path: Path) -> None:
    write(store, count(), 3)
    assert store._process_state._group_commit._checkpoints._connection is None


def test_a_reader_delays_it_and_no_more(store: SqliteStore, tmp_path: Path) -> None:
    numbers = count()
    store.perform(add, "before")
    entered, released = threading.Event(), threading.Event()
    reader = threading.Thread(target=store.perform, args=(listed_twice, entered, released))
    reader.start()
    assert entered.wait(60)
    write(store, numbers, 20)
    assert wal_size(tmp_path) > 20 * MEGABYTE
    released.set()
    reader.join()
    # It is tried again with each further LONGEST_WAL, not at each commit.
    write(store, numbers, 9)
    assert wal_size(tmp_path) <= LONGEST_WAL + MEGABYTE


def test_attempts_in_vain_are_rare(store: SqliteStore, tmp_path: Path) -> None:
    attempts: list[int] = []
    checkpoints = store._process_state._group_commit._checkpoints
    checkpoint = checkpoints._checkpoint

    def counted(writing: sqlite3.Connection) -> None:
        attempts.append(1)
        checkpoint(writing)

    checkpoints._checkpoint = counted  # type: ignore[method-assign]
    store.perform(add, "before")
    entered, released = threading.Event(), threading.Event()
    reader = threading.Thread(target=store.perform, args=(listed_twice, entered, released))
    reader.start()
    assert entered.wait(60)
    write(store, count(), 20)
    released.set()
    reader.join()
    assert 4 <= len(attempts) <= 5


def test_nobody_can_commit_meanwhile(store: SqliteStore, tmp_path: Path) -> None:
    numbers = count()
    write(store, numbers, 5)
    # The connection exists now; look over its shoulder the next time.
    checkpoints = store._process_state._group_commit._checkpoints
    assert checkpoints._connection is not None
    other = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None, timeout=0, check_same_thread=False)
    attempts: list[str] = []

    def intrude(statement: str) -> None:
        assert "wal_checkpoint" in statement
        try:
            other.execute("INSERT INTO note VALUES ('intruder', 0)")
            attempts.append("committed")
        except sqlite3.OperationalError as error:
            attempts.append(error.sqlite_errorname)

    checkpoints._connection.set_trace_callback(intrude)
    write(store, numbers, 5)
    other.close()
    assert set(attempts) == {"SQLITE_BUSY"}


def test_who_writes_is_not_disturbed(store: SqliteStore, tmp_path: Path) -> None:
    """While another program writes there is no checkpoint, not even a part of one."""
    write(store, count(), 5)
    checkpoints = store._process_state._group_commit._checkpoints
    assert checkpoints._connection is not None
    ran: list[str] = []
    checkpoints._connection.set_trace_callback(ran.append)
    other = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
    other.execute("PRAGMA wal_autocheckpoint = 0")
    other.execute("BEGIN IMMEDIATE")
    for number in range(200):
        other.execute("INSERT INTO note VALUES (? || hex(zeroblob(50000)), 0)", (f"other {number}",))
    other.execute("COMMIT")
    other.execute("BEGIN IMMEDIATE")
    checkpoints.after_commit(write_connection(store))
    assert ran == []
    other.execute("ROLLBACK")
    checkpoints.after_commit(write_connection(store))
    assert len(ran) == 1
    other.close()


def test_a_failure_is_logged_and_hurts_nobody(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(writing: sqlite3.Connection) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(store._process_state._group_commit._checkpoints, "_checkpoint", fail)
    with caplog.at_level(logging.WARNING, "perdure.store"):
        write(store, count(), 5)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_closed_file_has_no_wal(store: SqliteStore, tmp_path: Path) -> None:
    write(store, count(), 5)
    store.close()
    assert [path.name for path in tmp_path.iterdir()] == ["jobs.db"]
