"""A table of notes, the operations on it, and ways to look behind the SQLite store that performs them."""

from __future__ import annotations

import sqlite3
import subprocess
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from perdure.errors import Refused
from perdure.ops.op import Op, Query, announce, ask, ask_all, operation
from perdure.store.sqlite.store import SqliteStore
from tests.harness.processes import read_line, run_script, start
from tests.harness.waiting import until

STATEMENTS = {
    "table": "CREATE TABLE IF NOT EXISTS note (text TEXT NOT NULL UNIQUE, at INTEGER NOT NULL)",
    "insert": "INSERT INTO note (text, at) VALUES (:text, :now)",
    "fill": "INSERT INTO note (text, at) VALUES (:text || hex(zeroblob(:size / 2)), :now)",
    "list": "SELECT text FROM note ORDER BY rowid",
    "times": "SELECT at FROM note ORDER BY rowid",
    "trigger": "CREATE TRIGGER veto BEFORE INSERT ON note WHEN new.text LIKE 'veto%'"
    " BEGIN SELECT RAISE(ROLLBACK, 'vetoed'); END",
    "fail": "INSERT INTO note (text, at) SELECT value, :now FROM json_each(:text)",
    "nonsense": "SELECT 1 FROM nowhere",
}


@operation("write")
def make_table() -> Op[None]:
    yield from ask("table")


@operation("write")
def make_trigger() -> Op[None]:
    yield from ask("trigger")


@operation("write")
def add(text: str, wake: frozenset[str] = frozenset()) -> Op[str]:
    yield from ask("insert", text=text)
    yield from announce(wake)
    return text


@operation("write", priority="urgent")
def add_urgently(text: str) -> Op[str]:
    yield from ask("insert", text=text)
    return text


@operation("write")
def add_and_refuse(text: str, wake: frozenset[str] = frozenset()) -> Op[None]:
    yield from announce(wake)
    yield from ask("insert", text=text)
    raise Refused("Not today.")


@operation("write")
def add_unless(text: str, other: str) -> Op[str]:
    """Refuses where another note stands."""
    rows = yield from ask("list")
    if (other,) in rows:
        raise Refused(f"{other} was quicker")
    yield from ask("insert", text=text)
    return text


@operation("write")
def add_failing(text: str) -> Op[None]:
    """An error of SQLite's own, after a first insert."""
    yield from ask_all(Query("insert", {"text": text}), Query("fail", {"text": "no json"}))


@operation("write")
def fill(text: str, size: int) -> Op[None]:
    yield from ask("fill", text=text, size=size)


@operation("write")
def hold(text: str, entered: threading.Event, released: threading.Event) -> Op[str]:
    """Keeps the writer busy; real operations never wait."""
    yield from ask("insert", text=text)
    entered.set()
    assert released.wait(60)
    return text


@operation("read")
def listed() -> Op[list[str]]:
    rows = yield from ask("list")
    return [text for (text,) in rows]


@operation("read")
def listed_twice(entered: threading.Event, released: threading.Event) -> Op[tuple[int, int]]:
    before = yield from ask("list")
    entered.set()
    assert released.wait(60)
    after = yield from ask("list")
    return len(before), len(after)


@operation("read")
def nonsense() -> Op[None]:
    yield from ask("nonsense")


def note_store(path: object, **options: Any) -> SqliteStore:
    """A store with an empty table of notes."""
    store = SqliteStore(str(path), **{"statements": STATEMENTS, **options})
    store.perform(make_table)
    return store


def notes_in(path: object) -> list[str]:
    """What is in the file, by a connection of the test's own."""
    connection = sqlite3.connect(str(path), timeout=60)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return [text for (text,) in connection.execute("SELECT text FROM note ORDER BY rowid")]
    finally:
        connection.close()


def write_connection(store: SqliteStore) -> sqlite3.Connection:
    connection = store._process_state._group_commit._connection
    assert connection is not None
    return connection


@contextmanager
def traced(store: SqliteStore) -> Iterator[list[str]]:
    """The statements its write connection runs."""
    ran: list[str] = []
    connection = write_connection(store)
    connection.set_trace_callback(ran.append)
    try:
        yield ran
    finally:
        connection.set_trace_callback(None)


class Line:
    """The writer held by a thread of its own, so that calls line up behind it, to be taken as one group."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._threads = ThreadPoolExecutor(max_workers=64)
        self._released = threading.Event()
        entered = threading.Event()
        self.holder = self._threads.submit(store.perform, hold, "holder", entered, self._released)
        assert entered.wait(60)

    def perform(self, operation: Any, *args: Any) -> Future[Any]:
        """Line up, from yet another thread."""
        waiting = line_length(self._store) + 1
        call = self._threads.submit(self._store.perform, operation, *args)
        until(lambda: line_length(self._store) == waiting)
        return call

    def release(self) -> None:
        self._released.set()
        self._threads.shutdown()


def line_length(store: SqliteStore) -> int:
    """How many calls wait for the writer."""
    lanes = store._process_state._writer._write_queue
    return len(lanes._urgent) + len(lanes._others)


def start_program(code: str, *args: object) -> subprocess.Popen[str]:
    """Another Python, with its checks for developers."""
    return start("-X", "dev", "-c", textwrap.dedent(code), *args)


def run_program(code: str, *args: object) -> str:
    """What it printed, in silence otherwise."""
    return run_script(textwrap.dedent(code), *args, options=("-X", "dev"))


def hold_the_lock(path: object) -> subprocess.Popen[str]:
    """Another program that writes until it is given a line, or killed."""
    code = """
        import sqlite3, sys
        connection = sqlite3.connect(sys.argv[1], isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        print("locked", flush=True)
        sys.stdin.readline()
        connection.execute("INSERT INTO note VALUES ('theirs', 0)")
        connection.execute("COMMIT")
        connection.close()
    """
    holder = start_program(code, path)
    assert read_line(holder) == "locked"
    return holder
