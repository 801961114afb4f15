"""A write inside the caller's own SQLite transaction, without its connection: refused as soon as that is known."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from perdure import App
from perdure.errors import Refused
from perdure.store.sqlite import self_deadlock
from tests.harness.processes import conversation, run_script
from tests.harness.waiting import auntil, until

pytestmark = pytest.mark.skipif(not Path("/proc/locks").exists(), reason="only Linux lists locks")

NEVER = 3600.0
"""So patient is the app: what returns was not given up."""


@pytest.fixture
def app(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    monkeypatch.setattr(self_deadlock, "_warn_at", 0.0)
    app = App(sqlite_url, synchronous="normal")
    app.use_database(patience=NEVER)

    @app.task(name="work")
    def work() -> None: ...

    app.save_tasks()
    with connected(app) as connection:
        connection.execute("CREATE TABLE theirs (n integer)")
        connection.commit()
    yield app
    app.close()


def connected(app: App, **options: Any) -> closing[sqlite3.Connection]:
    path = (app.database.url or "").removeprefix("sqlite:///")
    return closing(sqlite3.connect(path, **options))


def begin(connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO theirs VALUES (1)")


def said(caplog: pytest.LogCaptureFixture) -> int:
    return caplog.text.count("give its connection as conn=")


def test_a_call_in_its_threads_own_transaction_is_refused(app: App) -> None:
    with connected(app) as connection:
        begin(connection)
        with pytest.raises(Refused, match="conn=") as refused:
            app.enqueue("work")
        assert refused.value.code == "store.self_locked"
        connection.commit()
    assert app.count_jobs() == {}, "nothing was written later"
    app.enqueue("work")


def test_the_first_call_of_an_app_is_refused_as_well(app: App) -> None:
    with connected(app) as connection, App(app.database.url) as fresh:
        fresh.use_database(patience=NEVER)
        fresh.task(name="new")(lambda: None)
        begin(connection)
        with pytest.raises(Refused, match="conn="):
            fresh.enqueue("new")


async def test_so_is_an_async_call_in_the_only_task(app: App) -> None:
    with connected(app) as connection:
        begin(connection)
        with pytest.raises(Refused, match="conn="):
            await app.aenqueue("work")
        connection.commit()
    assert await app.acount_jobs() == {}
    await app.aenqueue("work")


async def test_a_task_waits_for_the_transaction_of_another_one(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    with connected(app) as connection:
        begin(connection)
        waiting = asyncio.create_task(app.aenqueue("work"))
        await auntil(lambda: said(caplog) == 1)
        connection.commit()
        await waiting
    assert await app.acount_jobs() == {"default": {"ready": 1}}


@pytest.mark.parametrize("check_same_thread", [True, False])
def test_a_thread_waits_for_the_transaction_of_another_one(
    app: App, caplog: pytest.LogCaptureFixture, check_same_thread: bool
) -> None:
    begun, warned = threading.Event(), threading.Event()

    def write() -> None:
        with connected(app, check_same_thread=check_same_thread) as connection:
            begin(connection)
            begun.set()
            until(lambda: said(caplog) == 1)
            warned.set()
            connection.commit()

    thread = threading.Thread(target=write)
    thread.start()
    begun.wait()
    with connected(app) as reading:
        # A transaction of this thread that has only read is not the one.
        reading.execute("BEGIN")
        reading.execute("SELECT * FROM theirs").fetchall()
        app.enqueue("work")
    thread.join()
    assert warned.is_set()
    assert app.count_jobs() == {"default": {"ready": 1}}


def test_a_call_that_is_queued_behind_another_is_refused_alone(app: App) -> None:
    with connected(app) as connection:
        begin(connection)
        other = threading.Thread(target=app.enqueue, args=("work",))
        other.start()
        until(lambda: app.store._process_state._writer._write_queue._led)  # type: ignore[attr-defined]
        with pytest.raises(Refused, match="conn="):
            app.enqueue("work")
        connection.commit()
        other.join()
    assert app.count_jobs() == {"default": {"ready": 1}}


def test_the_transaction_of_another_process_is_waited_for(app: App, caplog: pytest.LogCaptureFixture) -> None:
    script = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("ready", flush=True)
for line in sys.stdin:
    connection.execute("COMMIT")
    print("committed", flush=True)
"""
    path = (app.database.url or "").removeprefix("sqlite:///")
    with connected(app) as reading, conversation("-c", script, path) as tell:
        reading.execute("BEGIN")
        reading.execute("SELECT * FROM theirs").fetchall()
        looked = threading.Timer(self_deadlock.LOOK_AFTER + 0.5, tell, ("commit",))
        looked.start()
        app.enqueue("work")
        looked.join()
    assert said(caplog) == 0


def test_a_connection_for_any_thread_is_known_in_a_program_with_one_thread(app: App) -> None:
    """As SQLAlchemy and Django open theirs."""
    script = """
import sqlite3, sys
from perdure import App
from perdure.errors import Refused
app = App("sqlite:///" + sys.argv[1])
app.use_database(patience=3600)
connection = sqlite3.connect(sys.argv[1], check_same_thread=False)
connection.execute("INSERT INTO theirs VALUES (1)")
try:
    app.enqueue("work")
except Refused as refusal:
    print(refusal.code)
connection.close()
app.close()
"""
    path = (app.database.url or "").removeprefix("sqlite:///")
    assert run_script(script, path) == "store.self_locked\n"
