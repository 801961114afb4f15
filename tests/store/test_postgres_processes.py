"""Programs that end, fork or never close a store: nothing hangs, nothing warns, no connection breaks."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Any

import psycopg
import pytest

from perdure.store.postgres.store import PostgresStore
from tests.harness import processes
from tests.harness.waiting import until
from tests.store.proxy import Proxy
from tests.store.things import postgres_store, run

BEGIN = """
import asyncio, gc, os, signal, sys, threading
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore it
from tests.store.things import *
store = postgres_store(sys.argv[1])
"""


def start(script: str, url: str) -> subprocess.Popen[str]:
    return processes.start("-c", BEGIN + script, url)


def output(script: str, url: str) -> list[str]:
    return processes.run_script(BEGIN + script, url).split()


@pytest.mark.parametrize(
    "script",
    [
        "store.perform(insert, 'a')",
        "asyncio.run(store.aperform(insert, 'a'))",
        "store.perform(insert, 'a'); del store; gc.collect()",
        "store.perform(insert, 'a'); cycle = [store]; cycle.append(cycle); del store, cycle; gc.collect()",
        "asyncio.run(store.aperform(insert, 'a')); store.close()",
        "threading.Thread(target=store.perform, args=(insert, 'a')).start()",
    ],
)
def test_a_program_that_never_closes_ends_without_a_word(
    admin: psycopg.Connection[Any], postgres_url: str, script: str
) -> None:
    assert output(script, postgres_url) == []
    assert admin.execute("SELECT id FROM perdure_thing").fetchall() == [("a",)]


def test_the_end_of_a_program_waits_for_nobody(admin, proxy: Proxy) -> None:
    script = """
store.perform(run, "one")
print("frozen?", flush=True)
sys.stdin.readline()
async def main():
    asyncio.create_task(store.aperform(insert, "a"))
    await asyncio.sleep(0.1)
asyncio.run(main())
"""
    with start(script, proxy.url) as process:
        processes.read_line(process)
        proxy.freeze()
        processes.tell(process)
        # A statement may take 30 s, and the network 10 more.
        assert process.wait(timeout=20) == 0


def test_a_store_that_is_forgotten_lets_go_of_its_connections_and_threads(
    admin: psycopg.Connection[Any], postgres_url: str
) -> None:
    script = """
asyncio.run(store.aperform(run, "one"))
before = threading.active_count()
del store
gc.collect()
deadline = 1000
while threading.active_count() > 1 and deadline:
    deadline -= 1
    threading.Event().wait(0.01)
print(before, threading.active_count(), flush=True)
sys.stdin.readline()
"""
    with start(script, postgres_url) as process:
        assert processes.read_line(process) == "2 1"
        until(
            lambda: (
                admin.execute(
                    "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'perdure'"
                    " AND datname = current_database()"
                ).fetchone()
                == (0,)
            )
        )
        processes.tell(process)


def test_an_interrupt_ends_the_wait_and_leaves_the_store_usable(
    admin: psycopg.Connection[Any], postgres_url: str
) -> None:
    script = """
try:
    store.perform(run, "sleep", seconds=25)
except KeyboardInterrupt:
    print(store.perform(run, "one"))
"""
    with start(script, postgres_url) as process:
        until(
            lambda: admin.execute(
                "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
            ).fetchone()
        )
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert (out.strip(), err) == ("[(1,)]", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_connections_of_its_own(admin, postgres_url: str) -> None:
    script = """
[(before,)] = store.perform(run, "backend")
pid = os.fork()
if not pid:
    [(backend,)] = store.perform(run, "backend")
    print(backend, flush=True)
    [(again,)] = asyncio.run(store.aperform(run, "backend"))
    assert again == backend
    del store
    gc.collect()
    sys.exit(0)
_, status = os.waitpid(pid, 0)
[(after,)] = store.perform(run, "backend")
print(before, after, status)
"""
    child, before, after, status = output(script, postgres_url)
    assert before == after != child
    assert status == "0"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_forked_amid_threads_is_not_stuck(admin, postgres_url: str) -> None:
    script = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)
stop = threading.Event()
def work():
    while not stop.is_set():
        store.perform(run, "one")
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
asyncio.run(store.aperform(run, "one"))
statuses = []
for _ in range(20):
    pid = os.fork()
    if not pid:
        store.perform(run, "one")
        asyncio.run(store.aperform(run, "one"))
        os._exit(0)
    statuses.append(os.waitpid(pid, 0)[1])
stop.set()
for thread in threads: thread.join()
print(*statuses)
"""
    assert output(script, postgres_url) == ["0"] * 20


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_forked_while_a_store_begins_is_not_stuck(admin, postgres_url: str) -> None:
    """In the child another store, too, reads the statements that a thread of the parent was reading."""
    script = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)
from perdure.store.postgres.store import Statement
parse, reading, read_on = Statement.parse, threading.Event(), threading.Event()
def slowly(text):
    reading.set()
    read_on.wait()
    return parse(text)
Statement.parse = slowly
thread = threading.Thread(target=lambda: store.perform(run, "one"))
thread.start()
reading.wait()
pid = os.fork()
if not pid:
    signal.alarm(30)  # stuck, it would outlive us
    Statement.parse = parse
    store.perform(run, "one")
    os._exit(0)
status = os.waitpid(pid, 0)[1]
read_on.set()
thread.join()
print(status)
"""
    assert output(script, postgres_url) == ["0"]


def pooled(data: bytes) -> bytes:
    """What a pooler says at the start: a pid of its own making."""
    place = data.find(b"K\0\0\0\x0c")
    return data if place < 0 else data[: place + 5] + b"\0\0\0\1" + data[place + 9 :]


@pytest.mark.parametrize(
    ("through_pooler", "prepare", "prepares"),
    [(False, None, True), (True, None, False), (True, True, True), (False, False, False)],
)
def test_statements_are_prepared_on_a_backend_of_our_own(
    admin, proxy: Proxy, through_pooler: bool, prepare: bool | None, prepares: bool
) -> None:
    if through_pooler:
        proxy.on_reply = pooled
    store: PostgresStore = postgres_store(proxy.url, prepare=prepare)
    for _ in range(2):
        [(prepared,)] = store.perform(run, "prepared")
    assert bool(prepared) is prepares
    store.close()
