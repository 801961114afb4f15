"""Many jobs leave a worker as they found it: its memory, its threads, its file descriptors."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.store.waiting import until
from tests.worker.fleet import Fleet, Hand

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


class Size(NamedTuple):
    megabytes: float
    threads: int
    files: int


def size(hand: Hand) -> Size:
    process = Path(f"/proc/{hand.process.pid}")
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    return Size(
        int(status["VmRSS"].split()[0]) / 1024, int(status["Threads"]), len(os.listdir(process / "fd"))
    )


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
    before = size(hand)
    run(n)
    after = size(hand)
    assert after.threads <= before.threads + 2
    assert after.files <= before.files + 2
    assert after.megabytes < before.megabytes + 8
    assert hand.stop() == 0
