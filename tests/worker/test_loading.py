"""A child that loads its app takes its time from nobody: not from the job that waits for it, not for ever."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from time import time

import pytest

from perdure import App
from perdure.errors import InvalidConfig
from perdure.worker.process import pool, slot
from perdure.worker.process.pool import ProcessRunner
from perdure.worker.process.protocol import Load
from tests.harness.waiting import auntil
from tests.worker import process_app
from tests.worker.test_processes import PATIENCE, alive, children, enqueue, noted, working
from tests.worker.waiting import until_state

TARGET = "tests.worker.slow_loading_app:app"


class Gate:
    """Without this file no child loads."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self) -> None:
        self.path.touch()

    def shut(self) -> None:
        self.path.unlink()

    @property
    def pids(self) -> list[int]:
        """The children that came here."""
        return [int(pid) for pid in noted(self.path.with_name("gate.pids"))]


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate = Gate(tmp_path / "gate")
    gate.open()
    monkeypatch.setenv("SLOW_LOADING", str(gate.path))
    return gate


async def test_the_time_of_a_job_begins_with_its_handler(sqlite_url: str, gate: Gate) -> None:
    async with process_app.make(sqlite_url) as app, working(app, target=TARGET) as worker:
        await (await enqueue(app, "die", how="kill")).ajoin(PATIENCE)
        gate.shut()
        job = await enqueue(app, "deadline")
        await auntil(lambda: len(gate.pids) == 2)
        (attempt,) = worker._executor.attempts.values()
        assert (attempt.has_begun, attempt.deadline) == (False, None)
        opened = time()
        gate.open()
        assert await job.aget(PATIENCE) >= opened + process_app.TIMEOUT
        assert job.attempt == 1


async def test_a_child_that_does_not_finish_loading_is_replaced(
    sqlite_url: str, gate: Gate, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with process_app.make(sqlite_url) as app, working(app, target=TARGET) as worker:
        await (await enqueue(app, "die", how="kill")).ajoin(PATIENCE)
        gate.shut()
        monkeypatch.setattr(pool, "PAUSE", 0.05)
        with monkeypatch.context() as patch, caplog.at_level(logging.ERROR, "perdure.worker"):
            patch.setattr(slot, "LOADING", 0.2)
            job = await enqueue(app, "pid")
            await auntil(lambda: "cannot load the app: it took more than 0.2 s" in caplog.text)
        gate.open()
        assert [await job.aget(PATIENCE)] == children(worker)
        assert job.attempt == 1


async def test_a_worker_is_refused_whose_first_child_does_not_finish_loading(
    sqlite_url: str, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate.shut()
    monkeypatch.setattr(slot, "LOADING", 0.2)
    async with process_app.make(sqlite_url) as app:
        with pytest.raises(
            InvalidConfig, match=r"cannot load .*slow_loading_app:app: it took more than 0\.2 s"
        ):
            async with app.worker(target=TARGET):
                pass


async def test_a_job_that_waits_for_its_child_can_be_cancelled(sqlite_url: str, gate: Gate) -> None:
    async with process_app.make(sqlite_url) as app, working(app, target=TARGET):
        await (await enqueue(app, "die", how="kill")).ajoin(PATIENCE)
        gate.shut()
        job = await enqueue(app, "pid")
        await until_state(job, "running")
        await job.acancel()
        await until_state(job, "canceled")


async def test_a_worker_that_is_stopped_while_its_first_child_loads_waits_for_nothing(
    sqlite_url: str, gate: Gate
) -> None:
    async def work(app: App) -> None:
        async with app.worker(target=TARGET):
            pass

    gate.shut()
    async with process_app.make(sqlite_url) as app:
        task = asyncio.create_task(work(app))
        await auntil(lambda: gate.pids)
        task.cancel()
        async with asyncio.timeout(PATIENCE / 2):
            with pytest.raises(asyncio.CancelledError):
                await task
        await auntil(lambda: not any(map(alive, gate.pids)))


async def test_whoever_is_cancelled_while_the_first_child_loads_leaves_none(gate: Gate) -> None:
    gate.shut()
    runner = ProcessRunner(1, Load(TARGET, path=sys.path))
    task = asyncio.create_task(runner.check(asyncio.Event()))
    await auntil(lambda: gate.pids)
    task.cancel()
    await auntil(lambda: not any(map(alive, gate.pids)) and not runner.pids)
