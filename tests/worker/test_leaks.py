"""Many jobs leave a worker as they found it: its memory, its threads, its file descriptors, its children."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.harness.processes import Process
from tests.harness.waiting import until
from tests.worker import cpu_app
from tests.worker.fleet import Fleet

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


class Size(NamedTuple):
    megabytes: float
    threads: int
    files: int


def size(pid: int) -> Size:
    process = Path(f"/proc/{pid}")
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    return Size(
        int(status["VmRSS"].split()[0]) / 1024, int(status["Threads"]), len(os.listdir(process / "fd"))
    )


def children(hand: Process) -> set[int]:
    """Those that are not dead yet."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            state, parent = (process / "stat").read_text().rpartition(")")[2].split()[:2]
            if int(parent) == hand.process.pid and state != "Z":
                found.add(int(process.name))
    return found


def assert_as_before(before: Size, after: Size) -> None:
    assert after.threads <= before.threads + 2
    # The store may have opened a reader or two, of two files each; a leak would show with each job.
    assert after.files <= before.files + 6
    assert after.megabytes < before.megabytes + 8


@pytest.mark.parametrize("n", [300, pytest.param(10_000, marks=pytest.mark.long)])
def test_jobs_in_threads_leave_nothing_behind(fleet: Fleet, n: int) -> None:
    hand = fleet.start(concurrency=20, lease=30)
    add, rest = fleet.app.tasks["add_in_thread"], fleet.app.tasks["rest_in_thread"]
    done = 40
    # Until everything that is kept for later is there, a thread for each slot among it.
    for job in fleet.app.enqueue_many([rest.job(seconds=0.1) for _ in range(done)]):
        job.get(30)

    def run(n: int) -> None:
        nonlocal done
        done += n
        fleet.app.enqueue_many([add.job(a=i, b=i) for i in range(n)])
        until(lambda: fleet.app.count_jobs()["default"].get("succeeded") == done, seconds=300)

    run(400)
    before = size(hand.process.pid)
    run(n)
    assert_as_before(before, size(hand.process.pid))
    assert hand.stop() == 0


@pytest.mark.parametrize("n", [50, pytest.param(1_000, marks=pytest.mark.long)])
def test_jobs_in_processes_leave_nothing_behind(fleet: Fleet, n: int) -> None:
    hand = fleet.start(env={"SERVE": "tests.worker.cpu_app"}, lease=30, processes=2)
    with cpu_app.make(fleet.url) as app:

        def run(n: int, seconds: float) -> set[int]:
            jobs = app.enqueue_many([app.tasks["burn"].job(seconds) for _ in range(n)])
            return {job.get(300) for job in jobs}

        # Until both children are there and have what they keep.
        until(lambda: run(20, 0.05) == children(hand) and len(children(hand)) == 2)
        run(100, 0.007)
        before = {pid: size(pid) for pid in children(hand)}
        worker = size(hand.process.pid)
        run(n, 0.007)
        # As many, but perhaps others: after many jobs a child is replaced.
        until(lambda: len(children(hand)) == 2)
        assert_as_before(worker, size(hand.process.pid))
        for was, pid in zip(before.values(), children(hand), strict=True):
            assert_as_before(before.get(pid, was), size(pid))
    assert hand.stop() == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in before)
