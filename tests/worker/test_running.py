"""A worker runs what was enqueued: on the loop and in threads, as many at a time as it has slots."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextvars import ContextVar
from typing import Any

import pytest

from perdure import CONTEXT, App, Context
from perdure.errors import InvalidConfig, InvalidOption
from tests.harness.waiting import auntil
from tests.worker.fleet import Fleet


async def test_async_and_plain_handlers_run_in_one_worker(app: App) -> None:
    @app.task(name="on_loop")
    async def on_loop(n: int) -> str:
        return f"{n} in {threading.current_thread().name}"

    @app.task(name="in_thread")
    def in_thread(n: int) -> str:
        return f"{n} in {threading.current_thread().name}"

    async with app.worker():
        first, second = await on_loop.aenqueue(1), await in_thread.aenqueue(2)
        assert await first.aget(30) == "1 in MainThread"
        assert (await second.aget(30)).startswith("2 in perdure-handler")


async def test_what_waited_before_the_worker_came_is_run(app: App) -> None:
    @app.task(name="double")
    async def double(n: int) -> int:
        return 2 * n

    jobs = await app.aenqueue_many([double.job(n) for n in range(300)])
    async with app.worker(concurrency=7):
        assert [await job.aget(30) for job in jobs] == [2 * n for n in range(300)]


async def test_there_are_never_more_running_than_slots_nor_in_the_ledger(app: App) -> None:
    running, most = 0, 0
    counted = asyncio.Event()

    @app.task(name="count")
    async def count() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await counted.wait()
        await asyncio.sleep(0.002)
        running -= 1

    jobs = await app.aenqueue_many([count.job() for _ in range(120)])
    in_ledger = []
    async with app.worker(concurrency=4):
        while (counts := (await app.acount_jobs())["default"]).get("succeeded", 0) < len(jobs):
            in_ledger.append(counts.get("running", 0))
            if in_ledger[-1] == 4:
                counted.set()
    assert most == 4
    assert max(in_ledger) == 4


async def test_threads_share_the_slots(app: App) -> None:
    together = threading.Barrier(3)

    @app.task(name="meet")
    def meet() -> int:
        return together.wait(60)

    jobs = await app.aenqueue_many([meet.job() for _ in range(6)])
    async with app.worker(concurrency=3):
        assert sorted([await job.aget(60) for job in jobs]) == [0, 0, 1, 1, 2, 2]


async def test_a_handler_learns_of_its_job(app: App) -> None:
    seen: list[Context] = []

    @app.task(name="look", timeout=60)
    async def look(*, ctx: Context = CONTEXT) -> None:
        seen.append(ctx)
        assert Context.current() is ctx

    @app.task(name="look_in_thread", timeout=None)
    def look_in_thread() -> None:
        seen.append(Context.current())

    async with app.worker() as worker:
        job = await look.using(tenant="acme", meta={"a": 1}).aenqueue()
        await job.aget(30)
        other = await look_in_thread.aenqueue()
        await other.aget(30)
    first, second = seen
    assert (first.job_id, first.run, first.attempt, first.tenant) == (job.id, 1, 1, "acme")
    assert (first.worker, first.meta) == (worker.identity, {"a": 1})
    assert first.deadline is not None
    assert (second.job_id, second.deadline, second.checkpoint) == (other.id, None, None)


async def test_context_variables_of_one_job_are_not_those_of_another(app: App) -> None:
    variable: ContextVar[int] = ContextVar("variable", default=0)

    def mark() -> int:
        before = variable.get()
        variable.set(before + 1)
        return before

    async def mark_on_loop() -> int:
        return mark()

    tasks = app.task(name="thread")(mark), app.task(name="loop")(mark_on_loop)
    async with app.worker(concurrency=1):
        for task in tasks:
            jobs = await app.aenqueue_many([task.job() for _ in range(3)])
            assert [await job.aget(30) for job in jobs] == [0, 0, 0]


async def test_a_block_in_a_web_application_leaves_nothing_behind(app: App) -> None:
    app.task(name="nothing")(lambda: None)
    threads = {thread.name for thread in threading.enumerate() if thread.name.startswith("perdure-heartbeat")}
    tasks = asyncio.all_tasks()
    async with app.worker():
        pass
    assert asyncio.all_tasks() == tasks
    assert await app.alist_workers() == []
    after = {thread.name for thread in threading.enumerate() if thread.name.startswith("perdure-heartbeat")}
    assert after == threads


async def test_a_worker_in_the_block_ends_with_an_error_of_the_block(app: App) -> None:
    app.task(name="nothing")(lambda: None)
    with pytest.raises(ZeroDivisionError):
        async with app.worker():
            raise ZeroDivisionError
    assert await app.alist_workers() == []


def test_a_burst_ends_when_nothing_is_left(app: App) -> None:
    @app.task(name="once")
    async def once(n: int) -> int:
        return n

    later = once.using(delay=3600).enqueue(1)
    jobs = app.enqueue_many([once.job(n) for n in range(50)])
    assert app.run_worker(burst=True, concurrency=3) == 0
    assert {job.refresh().state for job in jobs} == {"succeeded"}
    assert later.refresh().state == "ready"


@pytest.mark.parametrize("_round", range(5))
def test_a_burst_also_runs_what_its_last_job_enqueued(app: App, _round: int) -> None:
    @app.task(name="chain")
    def chain(n: int) -> None:
        if n:
            chain.enqueue(n - 1)

    chain.enqueue(3)
    assert app.run_worker(burst=True, poll=60) == 0
    assert app.count_jobs()["default"] == {"succeeded": 4}


def test_a_worker_without_tasks_or_with_odd_options_is_refused(app: App) -> None:
    with pytest.raises(InvalidConfig):
        app.run_worker(burst=True)
    app.task(name="nothing")(lambda: None)
    refused: list[dict[str, Any]] = [
        {"queues": "a,b"},
        {"queues": []},
        {"queues": {"a": 0}},
        {"concurrency": 0},
        {"poll": -1},
        {"drain": "x"},
    ]
    for odd in refused:
        with pytest.raises(InvalidOption):
            app.run_worker(burst=True, **odd)


async def test_operators_see_the_worker(app: App, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "perdure.worker")
    app.task(name="nothing")(lambda: None)
    async with app.worker(name="miller", queues=["a", "b"], concurrency=3) as worker:
        (row,) = await app.alist_workers()
        assert (row.id, row.name, row.slots) == (worker.identity, "miller", 3)
        assert (row.tasks, row.queues) == ('["nothing"]', '["a","b"]')
    await auntil(lambda: "Worker miller has stopped: done" in caplog.text)


def test_a_worker_in_a_process_of_its_own_runs_jobs_of_others(fleet: Fleet) -> None:
    fleet.start()
    assert fleet.enqueue("add", a=1, b=2).get(30) == 3
    assert fleet.enqueue("add_in_thread", a=3, b=4).get(30) == 7
