"""Several processes on one file: no call fails as busy, and every acknowledged write is there."""

from __future__ import annotations

import multiprocessing
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from perdure.errors import StoreBusy, StoreClosed
from perdure.store.sqlite.store import SqliteStore
from tests.harness.processes import tell
from tests.harness.waiting import until
from tests.store.notes import (
    STATEMENTS,
    add,
    hold_the_lock,
    listed,
    make_table,
    note_store,
    notes_in,
    run_program,
    start_program,
)

spawn = multiprocessing.get_context("spawn")


def write_many(path: str, name: str, number: int, start: Any) -> None:
    store = SqliteStore(path, statements=STATEMENTS)
    start.wait(60)
    store.perform(make_table)
    for note in range(number):
        assert store.perform(add, f"{name} {note}") == f"{name} {note}"
        if note % 10 == 0:
            assert f"{name} {note}" in store.perform(listed)
    store.close()


def test_processes_that_start_at_once_write_to_a_new_file(tmp_path: Path) -> None:
    path, start = str(tmp_path / "jobs.db"), spawn.Barrier(4)
    processes = [spawn.Process(target=write_many, args=(path, name, 100, start)) for name in "abcd"]
    for process in processes:
        process.start()
    for process in processes:
        process.join(100)
    assert [process.exitcode for process in processes] == [0] * 4
    assert sorted(notes_in(path)) == sorted(f"{name} {note}" for name in "abcd" for note in range(100))


def test_a_call_waits_for_another_program_and_reads_do_not(tmp_path: Path) -> None:
    store = note_store(tmp_path / "jobs.db")
    with hold_the_lock(tmp_path / "jobs.db") as holder:
        calls = [threading.Thread(target=store.perform, args=(add, f"note {number}")) for number in range(5)]
        for call in calls:
            call.start()
        assert store.perform(listed) == []
        tell(holder)
        for call in calls:
            call.join(60)
    assert store.perform(listed)[0] == "theirs"
    assert len(store.perform(listed)) == 6
    store.close()


def test_patience_has_an_end(tmp_path: Path) -> None:
    store = note_store(tmp_path / "jobs.db", patience=0.1)
    with hold_the_lock(tmp_path / "jobs.db") as holder:
        waiting = [threading.Thread(target=refused_as_busy, args=(store,)) for _ in range(3)]
        for call in waiting:
            call.start()
        for call in waiting:
            call.join(60)
        holder.kill()
    assert store.perform(add, "note") == "note"
    store.close()


def refused_as_busy(store: SqliteStore) -> None:
    with pytest.raises(StoreBusy):
        store.perform(add, "impatient")


def test_closing_does_not_wait_for_another_program(tmp_path: Path) -> None:
    store = note_store(tmp_path / "jobs.db", patience=None)
    told: list[BaseException] = []

    def write() -> None:
        try:
            store.perform(add, "note")
        except StoreClosed as error:
            told.append(error)

    with hold_the_lock(tmp_path / "jobs.db") as holder:
        calls = [threading.Thread(target=write) for _ in range(3)]
        for call in calls:
            call.start()
        until(lambda: store._process_state._writer._write_queue._led)
        store.close()
        for call in calls:
            call.join(60)
        holder.kill()
    assert len(told) == 3


KILLED = """
    import os, sys, threading
    from perdure.store.sqlite.store import SqliteStore
    from tests.store.notes import STATEMENTS, add
    store = SqliteStore(sys.argv[1], statements=STATEMENTS)
    def write(name):
        number = 0
        while True:
            number += 1
            note = store.perform(add, f"{sys.argv[2]} {name} {number} " + "x" * 2000)
            # One short write to a pipe is never torn.
            os.write(1, note.encode() + b"\\n")
    for name in range(3):
        threading.Thread(target=write, args=(name,)).start()
"""


@pytest.mark.parametrize("rounds", [8, pytest.param(60, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_what_was_acknowledged_survives_kill(tmp_path: Path, rounds: int) -> None:
    path = tmp_path / "jobs.db"
    note_store(path).close()
    for turn in range(rounds):
        with start_program(KILLED, path, turn) as writer:
            assert writer.stdout is not None
            # At another moment each time, now and then in the middle of a checkpoint.
            acknowledged = [writer.stdout.readline() for _ in range(20 + 97 * turn % 500)]
            writer.kill()
            acknowledged += writer.stdout.readlines()
        assert acknowledged[0]
        assert {line.removesuffix("\n") for line in acknowledged}.issubset(notes_in(path))


def test_a_killed_holder_of_the_lock_leaves_no_trace(tmp_path: Path) -> None:
    store = note_store(tmp_path / "jobs.db")
    with hold_the_lock(tmp_path / "jobs.db") as holder:
        holder.kill()
    assert store.perform(add, "note") == "note"
    assert store.perform(listed) == ["note"]
    store.close()


def test_the_file_is_never_opened_but_by_sqlite(tmp_path: Path) -> None:
    """Any close() of the file in this process would drop the locks SQLite holds on it."""
    code = """
        import asyncio, sys
        opened = []
        sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
        from tests.store.notes import add, fill, listed, note_store
        store = note_store(sys.argv[1])
        for number in range(20):
            store.perform(fill, f"note {number}", 500_000)
            store.perform(listed)
        asyncio.run(store.aperform(add, "note"))
        store.check_schema()
        store.close()
        print([path for path in opened if path.startswith(sys.argv[1])])
    """
    assert run_program(code, tmp_path / "jobs.db") == "[]\n"


def test_the_database_may_be_the_applications_own(tmp_path: Path) -> None:
    own = sqlite3.connect(tmp_path / "app.db", isolation_level=None)
    own.execute("CREATE TABLE customer (id INTEGER PRIMARY KEY)")
    store = note_store(tmp_path / "app.db")
    for number in range(50):
        own.execute("INSERT INTO customer VALUES (?)", (number,))
        store.perform(add, f"note {number}")
    assert own.execute("SELECT count(*) FROM customer").fetchone() == (50,)
    store.close()
    own.close()
    assert len(notes_in(tmp_path / "app.db")) == 50
