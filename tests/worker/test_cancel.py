"""A cancel that was asked anywhere reaches the handler within a second, and then no attempt follows."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure import CONTEXT, App, Context
from perdure.store.postgres import listener
from perdure.store.sqlite.wal_watcher import WalWatcher
from perdure.worker import heartbeat
from tests.harness.waiting import auntil, until
from tests.store.proxy import Proxy
from tests.worker.fleet import Fleet
from tests.worker.waiting import time_out, until_state


@pytest.mark.parametrize("task", ["rest_until_canceled", "rest_until_asked"])
def test_a_cancel_from_another_process_waits_for_no_heartbeat(
    fleet: Fleet, tmp_path: Path, task: str
) -> None:
    # The next heartbeat is twenty minutes away.
    fleet.start(lease=3600, poll=3600)
    notes = tmp_path / "notes"
    job = fleet.enqueue(task, note_to=str(notes))
    until(lambda: notes.exists())
    assert job.cancel(reason="enough") == "cancel_requested"
    until(lambda: "asked" in notes.read_text())
    job.join(30)
    # A thread that returned has done its work: that is a success.
    assert job.state == ("canceled" if task == "rest_until_canceled" else "succeeded")
    assert job.attempt == 1


async def test_a_cancel_that_nobody_announced_arrives_with_the_heartbeat(
    url: str, brisk_app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brisk_app.store, "listen", lambda listener: lambda: None, raising=False)

    @brisk_app.task(name="rest")
    async def rest() -> None:
        await asyncio.sleep(60)

    other = App(url)
    async with brisk_app.worker():
        job = await rest.aenqueue()
        await until_state(job, "running")
        await other.acancel_job(job.id)
        await until_state(job, "canceled")
    await other.aclose()


@pytest.fixture
def deaf_url(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """No notification passes: as behind a pooler, or on a file system that reports no changes."""
    if url.startswith("sqlite"):
        monkeypatch.setattr(WalWatcher, "add", lambda self, listener: lambda: None)
        yield url
        return
    monkeypatch.setattr(listener, "ANSWER_SECONDS", 0.5)
    with Proxy(url) as proxy:
        proxy.on_reply = lambda data: b"" if data.startswith(b"A") else data
        yield proxy.url


async def test_a_cancel_reaches_a_worker_that_hears_no_notifications(url: str, deaf_url: str) -> None:
    # The next heartbeat is twenty minutes away.
    async with App(deaf_url, lease=3600) as app, App(url) as other:

        @app.task(name="rest")
        async def rest() -> None:
            await asyncio.sleep(60)

        async with app.worker(drain=0):
            job = await rest.aenqueue()
            await until_state(job, "running")
            await other.acancel_job(job.id)
            await until_state(job, "canceled")


@pytest.mark.parametrize("deaf", [True, False])
async def test_only_a_deaf_worker_that_runs_jobs_looks_for_cancels(
    request: pytest.FixtureRequest, url: str, deaf: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    async with App(request.getfixturevalue("deaf_url") if deaf else url, lease=3600) as app:
        peek = app.operations.peek

        def counted(worker: str) -> Any:
            looks.append(worker)
            return peek(worker)

        monkeypatch.setattr(app.operations, "peek", counted, raising=False)
        monkeypatch.setattr(heartbeat, "CANCEL_POLL", 0.05)
        # A commit asks for a check of its own: only those by the clock count here.
        monkeypatch.setattr(heartbeat.Heartbeat, "check_now", lambda self: None)
        go_on = asyncio.Event()

        @app.task(name="wait")
        async def wait() -> None:
            await go_on.wait()

        async with app.worker():
            await auntil(lambda: app.store.hears_others is not deaf)
            looks.clear()
            await asyncio.sleep(0.3)
            assert looks == []
            job = await wait.aenqueue()
            await until_state(job, "running")
            if deaf:
                await auntil(lambda: len(looks) > 3)
            else:
                await asyncio.sleep(0.3)
                assert looks == []
            go_on.set()
            await job.aget(30)


async def test_a_cancel_leaves_others_alone(app: App) -> None:
    go_on = asyncio.Event()

    @app.task(name="rest")
    async def rest() -> str:
        await go_on.wait()
        return "rested"

    async with app.worker():
        doomed, spared = await app.aenqueue_many([rest.job(), rest.job()])
        await until_state(doomed, "running")
        await until_state(spared, "running")
        await doomed.acancel()
        await until_state(doomed, "canceled")
        go_on.set()
        assert await spared.aget(30) == "rested"


@pytest.mark.parametrize("end", ["error", "snooze", "timeout"])
async def test_an_attempt_under_a_cancel_is_the_last(app: App, end: str) -> None:
    from perdure import Snooze

    asked, release = threading.Event(), threading.Event()

    @app.task(name="rest", timeout=60, timeout_grace=0.2, backoff=0.01)
    def rest(*, ctx: Context = CONTEXT) -> Any:
        while not ctx.cancel_requested:
            time.sleep(0.01)
        if end == "error":
            raise ValueError
        if end == "snooze":
            raise Snooze(0)
        asked.set()
        release.wait(60)
        raise ValueError

    async with app.worker() as worker:
        job = await rest.aenqueue()
        await until_state(job, "running")
        await job.acancel()
        if end == "timeout":
            await auntil(asked.is_set)
            time_out(worker)
        await job.ajoin(30)
        release.set()
    assert (job.state, job.attempt) == ("canceled", 1)


async def test_a_job_canceled_before_its_claim_never_starts(app: App) -> None:
    started = []

    @app.task(name="note")
    async def note() -> None:
        started.append(1)

    job = await note.aenqueue()
    await job.acancel()
    other = await note.aenqueue()
    async with app.worker():
        await other.aget(30)
    assert started == [1]
    assert (await job.arefresh()).state == "canceled"
