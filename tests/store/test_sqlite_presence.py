"""A worker that died on this host is noticed by the lock it held, at once and by one who asks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from perdure.store import sqlite_presence
from perdure.store.postgres import PostgresStore
from perdure.store.sqlite import SqliteStore
from perdure.store.sqlite_presence import Presence
from tests.store.test_sqlite_fork import forked, went_well
from tests.store.waiting import until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no flock")

ROOT = Path(__file__).parents[2]
ANN, BOB = str(uuid.UUID(int=1)), str(uuid.UUID(int=2))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def presence(path: Path) -> Presence:
    return Presence(str(path))


@contextmanager
def another_worker(
    path: Path, worker: str, script: str = 'print("here", flush=True)'
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that holds the lock of this worker until it is killed, and what its script printed."""
    begin = """
import os, subprocess, sys, time
from perdure.store.store import open_store
store = open_store("sqlite:///" + sys.argv[1])
store.hold(sys.argv[2])
"""
    program = subprocess.Popen(
        [sys.executable, "-c", f"{begin}\n{script}\ntime.sleep(1000)", str(path), worker],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    with program:
        try:
            assert program.stdout is not None
            yield program, program.stdout.readline().strip()
        finally:
            program.kill()


def files(path: Path) -> list[str]:
    return sorted(file.name for file in path.parent.iterdir())


def test_a_worker_that_was_killed_is_absent_once(presence: Presence, path: Path) -> None:
    with another_worker(path, ANN) as (ann, _), another_worker(path, BOB):
        assert presence.absent([ANN, BOB]) == []
        ann.kill()
        ann.wait()
        assert presence.absent([BOB, ANN]) == [ANN]
        assert files(path) == [f"jobs.db-worker-{BOB}"]
        assert presence.absent([ANN, BOB]) == [], "unknown, and alive"


def test_a_worker_of_this_process_is_there_until_it_leaves(presence: Presence, path: Path) -> None:
    leave = presence.hold(ANN)
    assert presence.absent([ANN]) == []
    assert files(path) == [f"jobs.db-worker-{ANN}"]
    leave()
    assert files(path) == []
    assert presence.absent([ANN]) == [], "who left is unknown"
    again = presence.hold(ANN)
    leave()
    assert files(path) == [f"jobs.db-worker-{ANN}"], "to leave twice takes nothing from who came after"
    again()


def test_a_worker_without_a_file_is_unknown(presence: Presence) -> None:
    assert presence.absent([ANN, BOB]) == []


def test_a_child_by_fork_does_not_keep_its_parent_alive(presence: Presence, path: Path) -> None:
    script = """
if not os.fork():
    print(os.getpid(), flush=True)
"""
    with another_worker(path, ANN, script) as (worker, child):
        worker.kill()
        worker.wait()
        assert os.getpgid(int(child)), "the child lives"
        assert presence.absent([ANN]) == [ANN]
        os.kill(int(child), signal.SIGKILL)


def test_a_program_started_by_the_worker_does_not_keep_it_alive(presence: Presence, path: Path) -> None:
    script = """
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], close_fds=False)
print(child.pid, flush=True)
"""
    with another_worker(path, ANN, script) as (worker, child):
        worker.kill()
        worker.wait()
        assert os.getpgid(int(child)), "the program lives"
        # Between its start and its own program it has the worker's files.
        until(lambda: presence.absent([ANN]) == [ANN])
        os.kill(int(child), signal.SIGKILL)


def test_a_forked_child_cannot_give_up_for_its_parent(presence: Presence, path: Path) -> None:
    leave = presence.hold(ANN)
    assert went_well(forked(leave))
    assert files(path) == [f"jobs.db-worker-{ANN}"]
    assert presence.absent([ANN]) == []
    leave()


def test_a_file_that_took_the_place_of_the_dead_ones_is_left_alone(
    presence: Presence, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening and locking, somebody else may have removed the file, and the worker come back."""
    lock, place = sqlite_presence._lock, Path(f"{path}-worker-{ANN}")
    place.touch()
    leave = []

    def slow_lock(file: int) -> None:
        monkeypatch.setattr(sqlite_presence, "_lock", lock)
        place.unlink()
        leave.append(presence.hold(ANN))
        lock(file)

    monkeypatch.setattr(sqlite_presence, "_lock", slow_lock)
    assert presence.absent([ANN]) == []
    assert place.exists()
    assert presence.absent([ANN]) == []
    leave[0]()


def test_the_file_appears_locked(presence: Presence, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else somebody who looks in between would bury a worker that is just coming."""
    lock, found = sqlite_presence._lock, []

    def look_first(file: int) -> None:
        monkeypatch.setattr(sqlite_presence, "_lock", lock)
        found.extend(presence.absent([ANN]))
        lock(file)

    monkeypatch.setattr(sqlite_presence, "_lock", look_first)
    leave = presence.hold(ANN)
    assert found == []
    assert files(path) == [f"jobs.db-worker-{ANN}"]
    leave()


def test_of_many_who_ask_one_is_told(presence: Presence, path: Path) -> None:
    workers = [str(uuid.UUID(int=number)) for number in range(200)]
    for worker in workers:
        Path(f"{path}-worker-{worker}").touch()
    with ThreadPoolExecutor(8) as threads:
        told = [worker for answer in threads.map(presence.absent, [workers] * 8) for worker in answer]
    assert sorted(told) == workers
    assert files(path) == []


@pytest.mark.parametrize("name", ["", ".", "..", "../ann", "a/b", "-ann", "a\0b", "ann\n", "x" * 101, "ä"])
def test_what_is_no_plain_name_holds_nothing(presence: Presence, path: Path, name: str) -> None:
    presence.hold(name)()
    assert presence.absent([name]) == []
    assert files(path) == []


def test_where_no_file_can_be_written_the_log_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    presence = Presence(str(tmp_path / "missing" / "jobs.db"))
    for worker in (ANN, BOB):
        presence.hold(worker)()
    assert presence.absent([ANN, BOB]) == []
    assert caplog.text.count("No file beside the database can be locked") == 1


def test_where_locks_do_not_work_nothing_is_left_behind(
    presence: Presence, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(file: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(sqlite_presence, "_lock", refuse)
    open_files = len(sqlite_presence._open)
    presence.hold(ANN)()
    assert files(path) == []
    assert len(sqlite_presence._open) == open_files
    assert "Operation not supported" in caplog.text
    Path(f"{path}-worker-{ANN}").touch()
    assert presence.absent([ANN]) == [], "nobody can tell"


def test_without_fcntl_nothing_is_held(
    presence: Presence, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_presence, "_CAN_LOCK", False)
    presence.hold(ANN)()
    assert presence.absent([ANN]) == []
    assert files(path) == []


@pytest.mark.parametrize("store", [SqliteStore(":memory:"), PostgresStore("postgresql://")])
def test_other_databases_know_nobody_absent(store: SqliteStore | PostgresStore) -> None:
    leave = store.hold(ANN)
    assert store.absent([ANN, BOB]) == []
    leave()
    store.close()


def test_the_store_follows_links_to_the_database(tmp_path: Path, path: Path) -> None:
    """As SQLite does: all who use the file meet at the same place."""
    (tmp_path / "link.db").symlink_to(path)
    direct, linked = SqliteStore(str(path)), SqliteStore(str(tmp_path / "link.db"))
    leave = direct.hold(ANN)
    assert files(path) == [f"jobs.db-worker-{ANN}", "link.db"]
    assert linked.absent([ANN]) == []
    leave()
    direct.close()
    linked.close()
