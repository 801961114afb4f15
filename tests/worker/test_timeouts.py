"""A handler whose time is up is stopped where it can be; where it cannot, its slot is lost until it ends."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

from perdure import CONTEXT, App, Context
from tests.harness.waiting import auntil
from tests.store.proxy import Proxy
from tests.worker.fleet import Fleet
from tests.worker.waiting import free_slots, until_state

FAR = 3600


async def test_async_code_is_cancelled(app: App) -> None:
    ended = []

    @app.task(name="slow", timeout=0.2, backoff=FAR)
    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    async with app.worker():
        job = await slow.aenqueue()
        await auntil(lambda: ended)
        await until_state(job, "ready")
    assert (ended, job.attempt) == ([True], 1)
    assert job.error is not None
    assert (job.error.kind, job.error.code) == ("timeout", "job.timeout")
    assert job.error.message == "It ran for more than 0.2 s."


async def test_a_deadline_far_ahead_is_met_too(app: App) -> None:
    @app.task(name="slow", timeout=2.3, max_attempts=1)
    async def slow() -> None:
        await asyncio.sleep(60)

    async with app.worker():
        began = time.monotonic()
        job = await slow.aenqueue()
        await until_state(job, "failed")
    assert time.monotonic() - began > 2.2
    assert job.error is not None
    assert job.error.kind == "timeout"


async def test_a_job_may_have_its_own_timeout_or_none(app: App) -> None:
    @app.task(name="slow", timeout=0.1, max_attempts=1)
    async def slow() -> str:
        await asyncio.sleep(0.3)
        return "done"

    async with app.worker():
        assert await (await slow.using(timeout=60).aenqueue()).aget(30) == "done"


@pytest.mark.parametrize("run_in", ["async", "thread"])
async def test_a_result_seen_after_the_deadline_is_a_timeout(app: App, run_in: str) -> None:
    async def block() -> str:
        time.sleep(0.3)  # noqa: ASYNC251
        return "too late"

    def rest() -> str:
        time.sleep(0.3)
        return "too late"

    task = app.task(name="late", timeout=0.1, max_attempts=1)(block if run_in == "async" else rest)
    async with app.worker():
        job = await task.aenqueue()
        await job.ajoin(30)
    assert (job.state, job.result) == ("failed", None)
    assert job.error is not None
    assert job.error.kind == "timeout"


@pytest.mark.usefixtures("well")
async def test_one_that_swallows_the_cancel_is_given_up_after_the_grace(app: App) -> None:
    release = asyncio.Event()

    @app.task(name="stubborn", timeout=0.1, timeout_grace=0.3, max_attempts=1)
    async def stubborn() -> str:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return "after all"

    async with app.worker(concurrency=1):
        job = await stubborn.aenqueue()
        began = time.monotonic()
        await until_state(job, "failed")
        assert time.monotonic() - began >= 0.35
        # It costs no slot, and what it returns counts for nothing.
        assert await (await app.tasks["well"].aenqueue()).aget(30) == "well"
        release.set()
    assert (await job.arefresh()).state == "failed"
    assert job.error is not None
    assert job.error.kind == "timeout"


@pytest.fixture
def well(app: App) -> None:
    @app.task(name="well")
    async def well() -> str:
        return "well"


@pytest.mark.usefixtures("well")
async def test_a_thread_is_told_and_its_slot_comes_back_when_it_ends(app: App) -> None:
    release = threading.Event()
    told: list[bool] = []

    @app.task(name="stubborn", timeout=0.1, timeout_grace=0.1, max_attempts=1)
    def stubborn(*, ctx: Context = CONTEXT) -> str:
        release.wait(30)
        told.append(ctx.cancel_requested)
        return "too late"

    # The other slot keeps the worker from stopping.
    async with app.worker(concurrency=2) as worker:
        job = await stubborn.aenqueue()
        await until_state(job, "failed")
        await auntil(lambda: not worker._executor.attempts)
        assert (free_slots(worker), told) == (1, [])
        release.set()
        await auntil(lambda: free_slots(worker) == 2)
        assert await (await app.tasks["well"].aenqueue()).aget(30) == "well"
    assert (await job.arefresh()).state == "failed"
    assert told == [True]


async def test_a_thread_that_ends_within_the_grace_costs_nothing(app: App) -> None:
    release = threading.Event()

    @app.task(name="polite", timeout=0.1, timeout_grace=FAR, max_attempts=1)
    def polite(*, ctx: Context = CONTEXT) -> None:
        while not ctx.cancel_requested:
            time.sleep(0.01)
        release.wait(60)

    async with app.worker(concurrency=1) as worker:
        job = await polite.aenqueue()
        await auntil(lambda: [one.stop_reason for one in worker._executor.attempts.values()] == ["timeout"])
        # Slot and lease are held until the grace is over.
        assert (free_slots(worker), (await job.arefresh()).state) == (0, "running")
        release.set()
        await until_state(job, "failed")
        await auntil(lambda: free_slots(worker) == 1)
    assert job.error is not None
    assert job.error.kind == "timeout"


def test_a_worker_whose_slots_are_all_lost_stops_with_a_code_of_its_own(fleet: Fleet, tmp_path: Path) -> None:
    hand = fleet.start(concurrency=2)
    jobs = [fleet.enqueue("never_end", note_to=str(tmp_path / "notes")) for _ in range(2)]
    other = fleet.enqueue("rest", seconds=0.01)
    assert hand.end() == 11
    assert "Every thread is taken by a handler that does not end" in hand.log
    assert {fleet.state(job) for job in jobs} == {"failed"}
    assert fleet.state(other) in ("ready", "succeeded")
    assert fleet.app.list_workers() == []


def test_a_worker_with_a_handler_that_swallows_every_cancel_still_exits(fleet: Fleet, tmp_path: Path) -> None:
    hand = fleet.start()
    job = fleet.enqueue("swallow", note_to=str(tmp_path / "notes"))
    job.join(30)
    assert job.state == "failed"
    assert hand.stop() == 0


async def test_deadlines_are_met_while_the_database_is_silent(postgres_url: str) -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()
    with Proxy(postgres_url) as proxy:
        app = App(proxy.url)

        @app.task(name="speaks", timeout=1, max_attempts=1)
        async def speaks(*, ctx: Context = CONTEXT) -> None:
            begun.set()
            try:
                while True:
                    ctx.progress(1)
                    await asyncio.sleep(0.05)
            finally:
                stopped.set()

        async with app.worker():
            job = await speaks.aenqueue()
            await begun.wait()
            proxy.freeze()
            async with asyncio.timeout(9):  # before the silence of the network is noticed
                await stopped.wait()
            proxy.thaw()
            await until_state(job, "failed")
        await app.aclose()
