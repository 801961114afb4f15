"""Live settings of queues: workers heed a default timeout, a change of it, and the end of a pause."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from perdure import CONTEXT, App, Context
from perdure.client.task import AsyncTask
from perdure.worker import live_settings, sweeper
from tests.harness.waiting import auntil
from tests.worker.waiting import until_state

NEVER = 3600


def seconds_left(app: App, name: str = "look", **options: Any) -> AsyncTask[..., int | None]:
    """A task that returns its time, in whole seconds."""

    @app.task(name=name, queue="mail", **options)
    async def look(*, ctx: Context = CONTEXT) -> int | None:
        return None if ctx.deadline is None else round(ctx.deadline.timestamp() - time.time())

    return look


@asynccontextmanager
async def elsewhere(url: str) -> AsyncIterator[App]:
    """Another program on the same database."""
    app = App(url, synchronous="normal")
    try:
        yield app
    finally:
        await app.aclose()


async def test_the_timeout_of_a_queue_is_for_jobs_without_one(app: App) -> None:
    app.queue("mail", timeout=50)
    plain, own = seconds_left(app), seconds_left(app, "own", timeout=70)
    without = seconds_left(app, "without", timeout=None)
    async with app.worker():
        assert await (await plain.aenqueue()).aget(30) == 50
        assert await (await without.aenqueue()).aget(30) == 50
        assert await (await own.aenqueue()).aget(30) == 70
        assert await (await plain.using(timeout=80).aenqueue()).aget(30) == 80
        assert await (await plain.using(queue="other").aenqueue()).aget(30) == 900
        assert await (await without.using(queue="other").aenqueue()).aget(30) is None


async def test_an_attempt_that_takes_longer_is_stopped(app: App) -> None:
    app.queue("mail", timeout=0.1)

    @app.task(name="slow", queue="mail", max_attempts=1)
    async def slow() -> None:
        await asyncio.sleep(60)

    async with app.worker():
        job = await slow.aenqueue()
        await until_state(job, "failed")
    assert job.error is not None
    assert (job.error.kind, job.error.message) == ("timeout", "It ran for more than 0.1 s.")


@pytest.mark.parametrize("interval", [NEVER, live_settings.INTERVAL], ids=["announced", "polled"])
async def test_a_change_counts_from_the_next_attempt_on(
    app: App, url: str, interval: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_settings, "INTERVAL", interval)
    look = seconds_left(app)

    async def timeout_is(seconds: int) -> bool:
        return bool(await (await look.aenqueue()).aget(30) == seconds)

    async with app.worker(poll=NEVER), elsewhere(url) as other:
        assert await timeout_is(900)
        # SQLite announces a change only within its process.
        operator = app if interval == NEVER else other
        await operator.aset_queue("mail", timeout=50)
        await auntil(lambda: timeout_is(50))
        await operator.aset_queue("mail", timeout=None)
        await auntil(lambda: timeout_is(900))


async def test_workers_claim_when_a_pause_ends_by_itself(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeper, "END_PAUSES", NEVER)
    look = seconds_left(app)
    async with app.worker(poll=NEVER):
        begin = time.monotonic()
        await app.apause_queue("mail", resume_at=timedelta(seconds=0.5))
        await (await look.aenqueue()).aget(30)
        assert time.monotonic() - begin >= 0.5


async def test_the_elected_worker_tidies_up(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeper, "END_PAUSES", 0.0)
    seconds_left(app)
    await app.apause_queue("mail", resume_at=timedelta(seconds=0.01))
    listening: list[frozenset[str]] = []
    app.store.subscribe(listening.append)
    async with app.worker():
        await auntil(lambda: frozenset(["queue/mail"]) in listening)
