"""A burst ends when nothing is left, not when it was told of nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from perdure import App
from perdure.errors import InvalidOption, StoreAway
from perdure.worker.cycle import Cycle
from perdure.worker.process import pool
from perdure.worker.process.pool import ProcessRunner
from perdure.worker.worker import Worker
from tests.harness.waiting import auntil
from tests.worker import process_app


def test_a_burst_whose_worker_was_retired_goes_on_under_a_new_identity(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(name="work")
    def work(n: int) -> None:
        if n == 0:
            (worker,) = app.list_workers()
            app.operations.retire(worker.id)

    app.enqueue_many([work.job(n) for n in range(3)])
    assert app.run_worker(burst=True, concurrency=1, poll=60) == 0
    assert app.count_jobs()["default"] == {"succeeded": 3}
    assert "believed dead" in caplog.text


def test_a_burst_takes_again_what_it_has_claimed_and_never_heard_of(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    acycle = app.operations.acycle
    unheard: list[str] = []

    async def once_without_answer(*args: Any, **options: Any) -> Any:
        finished, jobs = await acycle(*args, **options)
        if jobs and not unheard:
            unheard.extend(job.id for job in jobs)
            raise StoreAway
        return finished, jobs

    monkeypatch.setattr(app.operations, "acycle", once_without_answer, raising=False)

    @app.task(name="work")
    async def work() -> None: ...

    app.enqueue_many([work.job() for _ in range(3)])
    assert app.run_worker(burst=True, concurrency=2, poll=60) == 0
    assert unheard
    assert app.count_jobs()["default"] == {"succeeded": 3}


def test_a_burst_waits_for_what_it_gives_back_under_another_identity(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim was answered when the worker had been believed dead: what it took is still to be released."""
    acycle, afinish = app.operations.acycle, app.operations.afinish
    workers: list[Worker] = []
    monkeypatch.setattr(Worker, "_prepare", _noting(workers, Worker._prepare))
    retired: list[str] = []

    async def answered_late(identity: str, *args: Any, **options: Any) -> Any:
        finished, jobs = await acycle(identity, *args, **options)
        (worker,) = workers
        if jobs and not retired and worker._sweeper.swept.is_set():
            retired.append(identity)
            await app.operations.aretire(identity)
            worker._heartbeat.check_now()
            await auntil(lambda: worker.identity != identity)
        return finished, jobs

    async def released_late(outcomes: Any) -> Any:
        await auntil(lambda: not workers[0]._executor.cycle.is_under_way)  # it has looked, and found nothing
        return await afinish(outcomes)

    monkeypatch.setattr(app.operations, "acycle", answered_late, raising=False)
    monkeypatch.setattr(app.operations, "afinish", released_late, raising=False)

    @app.task(name="work")
    async def work() -> None:
        await workers[0]._sweeper.swept.wait()

    app.enqueue_many([work.job() for _ in range(8)])
    assert app.run_worker(burst=True, concurrency=4, poll=60) == 0
    assert retired
    assert app.count_jobs()["default"] == {"succeeded": 8}
    assert {job.attempt for job in app.list_jobs()} == {1}, "given back, not rescued"


def test_a_burst_that_was_retired_rescues_what_it_ran_itself(
    brisk_app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else may ever do it. And what ends when no cycle is under way is followed by a claim at once."""
    app, runs, workers = brisk_app, list[int](), list[Worker]()
    monkeypatch.setattr(Worker, "_prepare", _noting(workers, Worker._prepare))

    @app.task(name="work")
    async def work(n: int) -> None:
        runs.append(n)
        if n == 0 and runs.count(0) == 1:
            (worker,) = await app.alist_workers()
            await app.operations.aretire(worker.id)
            try:
                await asyncio.sleep(3600)
            finally:
                cycle = workers[0]._executor.cycle
                await auntil(lambda: not cycle.is_under_way and not cycle._here.wants_claim)

    app.enqueue_many([work.job(n) for n in range(3)])
    assert app.run_worker(burst=True, concurrency=4, poll=3600) == 0, "it waits for no poll"
    assert app.count_jobs()["default"] == {"succeeded": 3}
    assert runs.count(0) == 2


def test_a_burst_waits_quietly_until_processes_can_be_started_again(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, check, cycles = Cycle._cycle, ProcessRunner.check, list[Cycle]()

    async def counted(cycle: Cycle) -> None:
        cycles.append(cycle)
        await one(cycle)

    async def paused(runner: ProcessRunner, stop: asyncio.Event) -> None:
        await check(runner, stop)
        runner._pause("As after a child that could not be started")

    monkeypatch.setattr(Cycle, "_cycle", counted)
    monkeypatch.setattr(ProcessRunner, "check", paused)
    monkeypatch.setattr(pool, "PAUSE", 1)
    with process_app.make(url) as app:
        job = app.enqueue("pid", {})
        assert app.run_worker(burst=True, poll=60, processes=1, target=process_app.TARGET) == 0
        assert job.refresh().state == "succeeded"
    assert len(cycles) < 20


def _noting(found: list[Worker], prepare: Callable[[Worker], None]) -> Callable[[Worker], None]:
    def noted(worker: Worker) -> None:
        found.append(worker)
        prepare(worker)

    return noted


def test_what_is_neither_yes_nor_no_is_refused(sqlite_url: str) -> None:
    app = App(sqlite_url)
    app.task(name="work")(lambda: None)
    wrong: Any = "no"
    with pytest.raises(InvalidOption, match=r"^burst must be True or False\.$"):
        app.run_worker(burst=wrong)
