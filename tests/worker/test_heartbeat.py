"""The heartbeat keeps a worker's leases, whatever its event loop does, and tells it which of them are gone."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from contextlib import closing
from typing import Any

import psycopg
import pytest

from perdure import App, Context
from perdure.errors import StoreAway
from perdure.model.job import Lease
from tests.harness.waiting import auntil
from tests.worker.fleet import Fleet
from tests.worker.waiting import free_slots, until_state


def test_a_blocked_loop_loses_no_lease_and_the_log_shows_where(fleet: Fleet) -> None:
    hand = fleet.start(lease=0.6)
    job, go_on = fleet.hold("block_until")
    fleet.until_lease_was_renewed(lease=0.6)
    hand.wait_for("The event loop has not answered")
    go_on()
    assert job.get(30) == "blocked"
    assert (job.attempt, job.row.token) == (1, 1)  # type: ignore[union-attr]
    assert hand.log.count("The event loop has not answered") == 1
    assert "in block_until\n" in hand.log


@pytest.mark.parametrize("run_in", ["async", "thread"])
async def test_a_lost_lease_stops_its_handler_and_writes_nothing(
    url: str, brisk_app: App, run_in: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A second worker takes the job that the first was believed to have left."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def on_loop() -> str:
        try:
            await asyncio.sleep(30)
        finally:
            stopped.set()
        return "first"

    def in_thread() -> str:
        while not Context.current().cancel_requested:
            time.sleep(0.01)
        loop.call_soon_threadsafe(stopped.set)
        return "first"

    second = App(url, lease=30)

    @second.task(name="work")
    async def work() -> str:
        return "second"

    task = brisk_app.task(name="work")(on_loop if run_in == "async" else in_thread)
    async with brisk_app.worker(queues=["q"]) as worker:
        identity = worker.identity
        job = await task.using(queue="q").aenqueue()
        await auntil(worker.leases)
        worker._executor.cycle.claiming = (
            False  # or it might take the job again, as the one that it is by then
        )
        async with second.worker():
            await second.operations.aretire(identity)
            await second.operations.arescue()
            assert await job.aget(30) == "second"
            await asyncio.wait_for(stopped.wait(), 25)
            await auntil(lambda: not worker.leases())
            assert await job.aget(30) == "second"
    assert (job.attempt, job.row.token) == (2, 2)  # type: ignore[union-attr]
    assert "was taken away from this worker; nothing of this attempt is recorded" in caplog.text
    await second.aclose()


async def test_a_worker_found_retired_registers_anew_and_goes_on(
    brisk_app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @brisk_app.task(name="work")
    async def work() -> str:
        return "done"

    async with brisk_app.worker() as worker:
        before = worker.identity
        await brisk_app.operations.aretire(before)
        await auntil(lambda: worker.identity != before)
        assert [row.id for row in await brisk_app.alist_workers()] == [worker.identity]
        job = await work.aenqueue()
        assert await job.aget(30) == "done"
        assert job.attempt == 1
    assert caplog.text.count("This worker was believed dead") == 1
    assert "does not know this worker" not in caplog.text
    assert await brisk_app.alist_workers() == []


async def test_a_claim_that_was_never_answered_is_given_back(
    brisk_app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    acycle = brisk_app.operations.acycle
    claimed: list[Lease] = []

    async def unheard(*args: Any, **options: Any) -> Any:
        finished, jobs = await acycle(*args, **options)
        if jobs and not claimed:
            claimed.extend(job.lease for job in jobs)
            raise StoreAway
        return finished, jobs

    monkeypatch.setattr(brisk_app.operations, "acycle", unheard, raising=False)

    @brisk_app.task(name="work")
    async def work() -> str:
        return "done"

    async with brisk_app.worker(poll=0.1):
        job = await work.aenqueue()
        assert await job.aget(30) == "done"
    # The claim that nobody heard of cost no attempt.
    assert (job.attempt, job.row.token, job.row.crashes) == (1, 2, 0)  # type: ignore[union-attr]
    assert "Giving back 1 jobs whose claim was never answered" in caplog.text


async def test_a_claim_whose_answer_is_only_slow_is_not_given_back(
    brisk_app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    acycle = brisk_app.operations.acycle

    async def slowly(*args: Any, **options: Any) -> Any:
        answer = await acycle(*args, **options)
        if answer[1]:
            await asyncio.sleep(1.2)  # several heartbeats
        return answer

    monkeypatch.setattr(brisk_app.operations, "acycle", slowly, raising=False)

    @brisk_app.task(name="work")
    async def work() -> str:
        return "done"

    async with brisk_app.worker():
        job = await work.aenqueue()
        assert await job.aget(30) == "done"
    assert job.row.token == 1  # type: ignore[union-attr]


async def test_slot_and_lease_are_held_until_the_outcome_is_durable(sqlite_url: str) -> None:
    app = App(sqlite_url, lease=30)
    ended = asyncio.Event()

    @app.task(name="work")
    async def work(n: int) -> int:
        if n == 1:
            await asyncio.to_thread(blocker.execute, "BEGIN IMMEDIATE")
            ended.set()
        return n

    path = sqlite_url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as blocker:
        async with app.worker(concurrency=1) as worker:
            jobs = await app.aenqueue_many([work.job(1), work.job(2)])
            await ended.wait()
            await auntil(lambda: all(attempt.ended for attempt in worker._executor.attempts.values()))
            assert (free_slots(worker), len(worker.leases())) == (0, 1)
            assert [(await job.arefresh()).state for job in jobs] == ["running", "ready"]
            blocker.execute("ROLLBACK")
            assert [await job.aget(30) for job in jobs] == [1, 2]
    await app.aclose()


@pytest.mark.long
async def test_one_row_that_somebody_holds_delays_no_other(postgres_url: str) -> None:
    app = App(postgres_url, lease=30)
    go_on = asyncio.Event()

    @app.task(name="work")
    async def work(n: int) -> int:
        await go_on.wait()
        return n

    async with app.worker(concurrency=2) as worker:
        held, free = await app.aenqueue_many([work.job(1), work.job(2)])
        await until_state(held, "running")
        await until_state(free, "running")
        async with await psycopg.AsyncConnection.connect(postgres_url) as conn:
            await conn.execute("SELECT 1 FROM perdure.job WHERE id = %s FOR UPDATE", [held.id])
            go_on.set()
            assert await free.aget(30) == 2
            # Its outcome waits for the row, and needs no slot for that.
            await auntil(lambda: free_slots(worker) == 2)
            assert (await held.arefresh()).state == "running"
        assert await held.aget(30) == 1
        await auntil(lambda: free_slots(worker) == 2)
    await app.aclose()


async def test_a_heartbeat_that_fails_is_tried_again(brisk_app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    heartbeat = brisk_app.operations.heartbeat
    beats: list[int] = []

    def fail_at_first(worker: str) -> Any:
        beats.append(1)
        if len(beats) < 3:
            raise StoreAway
        return heartbeat(worker)

    monkeypatch.setattr(brisk_app.operations, "heartbeat", fail_at_first, raising=False)
    brisk_app.task(name="work")(lambda: None)

    async def renewed() -> bool:
        (row,) = await brisk_app.alist_workers()
        return row.beat_at > row.started_at

    async with brisk_app.worker():
        await auntil(renewed)
    assert len(beats) >= 3


@pytest.mark.long
def test_the_log_is_quiet_while_all_is_well(fleet: Fleet) -> None:
    hand = fleet.start(lease=0.3)
    jobs = [fleet.enqueue("add", a=n, b=n) for n in range(20)]
    assert [job.get(30) for job in jobs] == [2 * n for n in range(20)]
    assert hand.stop() == 0
    assert logging.getLevelName(logging.WARNING) not in hand.log
