"""A worker that cannot renew its lease for a whole lease stops its handlers: others may start their jobs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from perdure import CONTEXT, App, Context
from perdure.worker import lease_watch
from perdure.worker.attempt import Attempt
from perdure.worker.lease_watch import LeaseWatch
from tests.harness.waiting import auntil
from tests.worker import process_app
from tests.worker.outage import Outage
from tests.worker.waiting import until_state

LEASE = 1.0


@pytest.fixture
def app(outage: Outage) -> Iterator[App]:
    """Nobody rescues its jobs: whether the database has waited for its worker is not the subject here."""
    app = App(outage.url, synchronous="normal", lease=LEASE)

    async def arescue(**options: Any) -> list[Any]:
        return []

    async def aretire_silent(**options: Any) -> None: ...

    vars(app.operations)["arescue"] = arescue
    vars(app.operations)["aretire_silent"] = aretire_silent
    yield app
    app.close()


@pytest.mark.parametrize("run_in", ["async", "thread"])
async def test_a_handler_is_stopped_and_not_charged(
    app: App, outage: Outage, run_in: str, caplog: pytest.LogCaptureFixture
) -> None:
    attempts: list[int] = []
    stopped = threading.Event()

    async def on_loop(*, ctx: Context = CONTEXT) -> str:
        attempts.append(ctx.attempt)
        try:
            await asyncio.sleep(0 if stopped.is_set() else 60)
        finally:
            stopped.set()
        return "done"

    def in_thread(*, ctx: Context = CONTEXT) -> str:
        attempts.append(ctx.attempt)
        while not stopped.is_set():
            time.sleep(0.01)
            if ctx.cancel_requested:
                stopped.set()
            ctx.check()
        return "done"

    task: Any = app.task(name="rest", max_attempts=1)(on_loop if run_in == "async" else in_thread)
    async with app.worker():
        job = await task.aenqueue()
        await auntil(lambda: attempts)
        with outage.begin():
            await auntil(stopped.is_set)
        assert await job.aget(60) == "done"
    assert attempts == [1, 1]
    (entry,) = [one for one in await app.ajob_history(job.id) if one.what == "interrupted"]
    assert "could not renew its lease" in entry.detail["message"]
    assert caplog.text.count("could not be renewed for 1 s: stopping 1 handlers") == 1


async def test_a_handler_in_a_process_is_ended(outage: Outage, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    async with (
        process_app.make(outage.url, lease=LEASE) as app,
        app.worker(processes=1, target=process_app.TARGET, drain=0),
    ):
        await app.tasks["linger"].aenqueue(str(notes))
        await auntil(notes.exists)
        with outage.begin():
            await auntil(lambda: "cleaned up" in notes.read_text())


async def test_work_that_is_done_meanwhile_counts_while_nobody_has_taken_the_job(
    app: App, outage: Outage
) -> None:
    asked = threading.Event()

    @app.task(name="finish", max_attempts=1)
    def finish(*, ctx: Context = CONTEXT) -> str:
        while not ctx.cancel_requested:
            time.sleep(0.01)
        asked.set()
        return "done"

    async with app.worker():
        job = await finish.aenqueue()
        await until_state(job, "running")
        with outage.begin():
            await auntil(asked.is_set)
        assert await job.aget(60) == "done"
    assert job.attempt == 1


class FakeRenewals:
    def __init__(self) -> None:
        self.renewed_at = time.monotonic()
        self.failing_since: float | None = None


class FakeAttempt:
    ended = False

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def stop(self, reason: str) -> None:
        self.reasons.append(reason)


async def test_a_worker_that_was_only_suspended_asks_first(monkeypatch: pytest.MonkeyPatch) -> None:
    renewals, attempt, lease = FakeRenewals(), FakeAttempt(), 0.3
    renewals.renewed_at -= 100
    watch = LeaseWatch(renewals, [cast(Attempt, attempt)], lease=lease)
    task = asyncio.create_task(watch.run())
    await asyncio.sleep(lease)
    assert attempt.reasons == [], "no heartbeat was sent since"
    renewals.failing_since = time.monotonic()
    with monkeypatch.context() as frozen:
        frozen.setattr(lease_watch, "monotonic", lambda: renewals.failing_since)
        assert not watch._is_over(), "the first one is not answered yet"
    await auntil(lambda: attempt.reasons)
    assert time.monotonic() - renewals.failing_since >= lease / 3
    await asyncio.sleep(lease)
    assert attempt.reasons == ["unrenewed"], "once"
    renewals.renewed_at, renewals.failing_since = time.monotonic(), None
    await asyncio.sleep(lease / 2)
    renewals.failing_since = time.monotonic()
    await auntil(lambda: len(attempt.reasons) == 2)
    task.cancel()
