"""Handlers in processes of their own: they run, speak, are stopped and die without disturbing anybody."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from perdure import App, JobCanceled, JobFailed
from perdure.errors import InvalidConfig, LeaseLost
from perdure.handle import Job
from perdure.model.job import SECOND, Lease
from perdure.model.lifecycle import Canceled, Continued, Failed, Outcome, Snoozed, Succeeded, Throttled
from perdure.worker import processes
from perdure.worker.wire import Ended, Fault
from perdure.worker.worker import Worker
from tests.store.waiting import auntil, until
from tests.worker import press

PATIENCE = 60


@pytest.fixture
def app(url: str) -> Iterator[App]:
    with press.make(url) as app:
        yield app


@asynccontextmanager
async def working(app: App, **options: Any) -> AsyncIterator[Worker]:
    async with app.worker(**{"processes": 1, "target": press.TARGET, **options}) as worker:
        yield worker
    assert children(worker) == []


def children(worker: Worker) -> list[int]:
    return worker._places._processes.pids


async def enqueue(app: App, task: str, **arguments: Any) -> Job[Any]:
    return await app.aenqueue(task, arguments)


def alive(pid: int) -> bool:
    """Not if it is a zombie whose parent has not looked yet."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def noted(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


async def test_plain_and_async_handlers_run_in_one_child_that_is_kept(app: App) -> None:
    async with working(app) as worker:
        found = [await (await enqueue(app, task)).aget(PATIENCE) for task in ("pid", "async_pid", "pid")]
        assert children(worker) == [found[0]]
        assert len(set(found)) == 1
        assert os.getpid() not in found


async def test_a_handler_knows_its_job(app: App) -> None:
    async with working(app) as worker:
        job = await app.tasks["tell"].using(tenant="acme", meta={"k": 1}).aenqueue()
        assert await job.aget(PATIENCE) == {
            "job": job.id,
            "attempt": 1,
            "run": 1,
            "tenant": "acme",
            "meta": {"k": 1},
            "worker": worker.identity,
            "deadline": True,
            "thread": True,
        }


async def test_what_a_handler_says_is_written_and_what_it_saves_is_kept(app: App) -> None:
    async with working(app):
        first, second = await enqueue(app, "speak"), await enqueue(app, "aspeak")
        assert await first.aget(PATIENCE) == {"at": 1}
        assert await second.aget(PATIENCE) == [1, "two"]
    await first.arefresh()
    assert first.progress is not None
    assert (first.progress.stage, first.progress.done, first.progress.total) == ("half", 1, 2)
    assert first.attempt == 2
    said = [entry for entry in await app.ajob_history(first.id) if "a line" in repr(entry)]
    assert said


async def test_a_handler_fails_as_it_would_elsewhere(app: App) -> None:
    async with working(app):
        plain, fatal = await enqueue(app, "fail", how="luck"), await enqueue(app, "fail", how="fatal")
        for job in (plain, fatal):
            with pytest.raises(JobFailed):
                await job.aget(PATIENCE)
    assert plain.error is not None
    assert fatal.error is not None
    assert plain.error.message.startswith("ValueError: no luck")
    assert (fatal.error.kind, fatal.error.code, fatal.error.message) == ("fatal", "press.jam", "no good")
    trace = str(plain.error.trace)
    assert "press.py" in trace
    assert f"worker{os.sep}child.py" not in trace


@pytest.mark.parametrize(("how", "said"), [("exit", "exit code 3"), ("kill", "SIGKILL"), ("fault", "SIGSEGV")])
async def test_a_child_that_dies_takes_only_its_own_job_with_it(
    app: App, how: str, said: str, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    async with working(app, processes=2):
        neighbour = await enqueue(app, "wait_for", path=str(go))
        await auntil(lambda: neighbour.refresh_state() == "running")
        job = await enqueue(app, "die", how=how)
        with pytest.raises(JobFailed):
            await job.aget(PATIENCE)
        assert job.error is not None
        assert (job.error.kind, said in job.error.message) == ("panic", True)
        await (await enqueue(app, "pid")).aget(PATIENCE)
        go.touch()
        assert await neighbour.aget(PATIENCE) == "waited"
        assert neighbour.attempt == 1
