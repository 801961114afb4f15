"""The lock of a worker that died on this host shows its death at once, to one caller."""

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

from perdure.store.postgres.store import PostgresStore
from perdure.store.sqlite import liveness_locks
from perdure.store.sqlite.liveness_locks import LivenessLocks
from perdure.store.sqlite.store import SqliteStore
from tests.harness.processes import read_line, start
from tests.harness.waiting import until
from tests.store.test_sqlite_fork import forked, went_well

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no flock")

ROOT = Path(__file__).parents[2]
ANN, BOB = str(uuid.UUID(int=1)), str(uuid.UUID(int=2))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def locks(path: Path) -> LivenessLocks:
    return LivenessLocks(str(path))


@contextmanager
def another_worker(
    path: Path, worker: str, script: str = 'print("here", flush=True)'
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that holds the lock of this worker until it is killed, and what its script printed."""
    begin = """
import os, subprocess, sys, time
from perdure.store.store import open_store
store = open_store("sqlite:///" + sys.argv[1])
store.lock_liveness(sys.argv[2])
"""
    with start("-W", "default", "-c", f"{begin}\n{script}\ntime.sleep(1000)", path, worker) as program:
        try:
            yield program, read_line(program)
        finally:
            program.kill()


def files(path: Path) -> list[str]:
    return sorted(file.name for file in path.parent.iterdir())


def test_a_worker_that_was_killed_is_absent_once(locks: LivenessLocks, path: Path) -> None:
    with another_worker(path, ANN) as (ann, _), another_worker(path, BOB):
        assert locks.absent([ANN, BOB]) == []
        ann.kill()
        ann.wait()
        assert locks.absent([BOB, ANN]) == [ANN]
        assert files(path) == [f"jobs.db-worker-{BOB}"]
        assert locks.absent([ANN, BOB]) == [], "unknown, and alive"


def test_a_worker_of_this_process_is_there_until_it_leaves(locks: LivenessLocks, path: Path) -> None:
    leave = locks.lock_liveness(ANN)
    assert locks.absent([ANN]) == []
    assert files(path) == [f"jobs.db-worker-{ANN}"]
    leave()
    assert files(path) == []
    assert locks.absent([ANN]) == [], "who left is unknown"
    again = locks.lock_liveness(ANN)
    leave()
    assert files(path) == [f"jobs.db-worker-{ANN}"], "to leave twice takes nothing from who came after"
    again()


def test_a_worker_without_a_file_is_unknown(locks: LivenessLocks) -> None:
    assert locks.absent([ANN, BOB]) == []


def test_a_child_by_fork_does_not_keep_its_parent_alive(locks: LivenessLocks, path: Path) -> None:
    script = """
if not os.fork():
    print(os.getpid(), flush=True)
"""
    with another_worker(path, ANN, script) as (worker, child):
        worker.kill()
        worker.wait()
        assert os.getpgid(int(child)), "the child lives"
        assert locks.absent([ANN]) == [ANN]
        os.kill(int(child), signal.SIGKILL)


def test_a_program_started_by_the_worker_does_not_keep_it_alive(locks: LivenessLocks, path: Path) -> None:
    script = """
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], close_fds=False)
print(child.pid, flush=True)
"""
    with another_worker(path, ANN, script) as (worker, child):
        worker.kill()
        worker.wait()
        assert os.getpgid(int(child)), "the program lives"
        # Between its start and its own program it has the worker's files.
        until(lambda: locks.absent([ANN]) == [ANN])
        os.kill(int(child), signal.SIGKILL)


def test_a_forked_child_cannot_give_up_for_its_parent(locks: LivenessLocks, path: Path) -> None:
    leave = locks.lock_liveness(ANN)
    assert went_well(forked(leave))
    assert files(path) == [f"jobs.db-worker-{ANN}"]
    assert locks.absent([ANN]) == []
    leave()


def test_a_file_that_took_the_place_of_the_dead_ones_is_left_alone(
    locks: LivenessLocks, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening and locking, somebody else may have removed the file, and the worker come back."""
    lock, place = liveness_locks._lock, Path(f"{path}-worker-{ANN}")
    place.touch()
    leave = []

    def slow_lock(file: int) -> None:
        monkeypatch.setattr(liveness_locks, "_lock", lock)
        place.unlink()
        leave.append(locks.lock_liveness(ANN))
        lock(file)

    monkeypatch.setattr(liveness_locks, "_lock", slow_lock)
    assert locks.absent([ANN]) == []
    assert place.exists()
    assert locks.absent([ANN]) == []
    leave[0]()


def test_the_file_appears_locked(locks: LivenessLocks, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else somebody who looks in between would bury a worker that is just coming."""
    lock, found = liveness_locks._lock, []

    def look_first(file: int) -> None:
        monkeypatch.setattr(liveness_locks, "_lock", lock)
        found.extend(locks.absent([ANN]))
        lock(file)

    monkeypatch.setattr(liveness_locks, "_lock", look_first)
    leave = locks.lock_liveness(ANN)
    assert found == []
    assert files(path) == [f"jobs.db-worker-{ANN}"]
    leave()


def test_of_many_who_ask_one_is_told(locks: LivenessLocks, path: Path) -> None:
    workers = [str(uuid.UUID(int=number)) for number in range(200)]
    for worker in workers:
        Path(f"{path}-worker-{worker}").touch()
    with ThreadPoolExecutor(8) as threads:
        told = [worker for answer in threads.map(locks.absent, [workers] * 8) for worker in answer]
    assert sorted(told) == workers
    assert files(path) == []


@pytest.mark.parametrize("name", ["", ".", "..", "../ann", "a/b", "-ann", "a\0b", "ann\n", "x" * 101, "ä"])
def test_what_is_no_plain_name_holds_nothing(locks: LivenessLocks, path: Path, name: str) -> None:
    locks.lock_liveness(name)()
    assert locks.absent([name]) == []
    assert files(path) == []


def test_where_no_file_can_be_written_the_log_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    locks = LivenessLocks(str(tmp_path / "missing" / "jobs.db"))
    for worker in (ANN, BOB):
        locks.lock_liveness(worker)()
    assert locks.absent([ANN, BOB]) == []
    assert caplog.text.count("No file beside the database can be locked") == 1


def test_where_locks_do_not_work_nothing_is_left_behind(
    locks: LivenessLocks, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(file: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(liveness_locks, "_lock", refuse)
    open_files = len(liveness_locks._open)
    locks.lock_liveness(ANN)()
    assert files(path) == []
    assert len(liveness_locks._open) == open_files
    assert "Operation not supported" in caplog.text
    Path(f"{path}-worker-{ANN}").touch()
    assert locks.absent([ANN]) == [], "nobody can tell"


def test_without_fcntl_nothing_is_held(
    locks: LivenessLocks, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness_locks, "_CAN_LOCK", False)
    locks.lock_liveness(ANN)()
    assert locks.absent([ANN]) == []
    assert files(path) == []


@pytest.mark.parametrize("store", [SqliteStore(":memory:"), PostgresStore("postgresql://")])
def test_other_databases_know_nobody_absent(store: SqliteStore | PostgresStore) -> None:
    leave = store.lock_liveness(ANN)
    assert store.absent([ANN, BOB]) == []
    leave()
    store.close()


def test_the_store_follows_links_to_the_database(tmp_path: Path, path: Path) -> None:
    """As SQLite does: all who use the file meet at the same place."""
    (tmp_path / "link.db").symlink_to(path)
    direct, linked = SqliteStore(str(path)), SqliteStore(str(tmp_path / "link.db"))
    leave = direct.lock_liveness(ANN)
    assert files(path) == [f"jobs.db-worker-{ANN}", "link.db"]
    assert linked.absent([ANN]) == []
    leave()
    direct.close()
    linked.close()
