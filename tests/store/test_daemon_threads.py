"""Daemon threads start when needed, at most as many as allowed, and never delay an exit."""

from __future__ import annotations

import logging
import threading

import pytest

from perdure.errors import StoreClosed
from perdure.internal.threads import DaemonThreads
from tests.harness.waiting import until
from tests.store.notes import run_program


def named(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(name)]


def test_threads_are_started_when_there_is_work_for_them() -> None:
    pool, done = DaemonThreads("lazy", limit=3), threading.Semaphore(0)
    assert named("lazy") == []
    for _ in range(20):
        pool.submit(done.release)
        assert done.acquire(timeout=60)
        until(lambda: pool._free == len(named("lazy")))
    assert len(named("lazy")) == 1
    pool.stop()
    assert named("lazy") == []


def test_no_more_than_the_limit_work_at_once() -> None:
    pool, gate, entered = DaemonThreads("few", limit=3), threading.Event(), threading.Semaphore(0)

    def work() -> None:
        entered.release()
        gate.wait(60)

    for _ in range(7):
        pool.submit(work)
    for _ in range(3):
        assert entered.acquire(timeout=60)
    assert not entered.acquire(blocking=False)
    assert len(named("few")) == 3
    gate.set()
    pool.stop()
    # What was submitted before the end was done before the end.
    for _ in range(4):
        assert entered.acquire(blocking=False)


def test_work_that_fails_is_logged_and_its_thread_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    pool, done = DaemonThreads("tough", limit=1), threading.Event()

    def fail() -> None:
        raise RuntimeError("oops")

    with caplog.at_level(logging.ERROR, "perdure.store"):
        pool.submit(fail)
        pool.submit(done.set)
        assert done.wait(60)
    assert len(caplog.records) == 1
    pool.stop()


def test_after_the_end_there_is_no_more_work() -> None:
    pool = DaemonThreads("ended", limit=1)
    pool.submit(lambda: None)
    pool.stop()
    pool.stop()
    with pytest.raises(StoreClosed):
        pool.submit(lambda: None)


def test_a_thread_may_stop_its_own_kind() -> None:
    pool, stopped = DaemonThreads("own", limit=1), threading.Event()

    def stop() -> None:
        pool.stop()
        stopped.set()

    pool.submit(stop)
    assert stopped.wait(60)
    until(lambda: not named("own"))


def test_the_program_ends_although_they_work() -> None:
    code = """
        import threading
        from perdure.internal.threads import DaemonThreads
        entered = threading.Event()
        pool = DaemonThreads("stuck", limit=1)
        pool.submit(lambda: (entered.set(), threading.Event().wait()))
        entered.wait()
        print("end")
    """
    assert run_program(code) == "end\n"
