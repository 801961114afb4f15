"""The lines of a handler are durable no later than its outcome, however its worker ends; a loss is logged."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from perdure import CONTEXT, App, Context
from perdure.errors import StoreAway
from perdure.ops.report import JobReport
from perdure.worker.context import MOST_LOGS
from perdure.worker.worker import Worker
from tests.worker.test_reports import lines


async def test_a_handler_that_ends_just_before_reports_are_written_keeps_its_lines(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report behind the outcome would be refused: the lease is over by then."""
    workers: list[Worker] = []
    report = app.operations.areport

    async def report_slowly(said: Sequence[JobReport]) -> Any:
        await asyncio.sleep(0.3)
        return await report(said)

    @app.task(name="speak")
    async def speak(*, ctx: Context = CONTEXT) -> None:
        ctx.log("the last line")
        # As the timer does, which a blocked loop lets come with anything.
        workers[0]._executor.reports._write_in_background()

    monkeypatch.setattr(app.operations, "areport", report_slowly, raising=False)
    async with app.worker() as worker:
        workers.append(worker)
        job = await speak.aenqueue()
        await job.ajoin(30)
    assert (job.state, await lines(app, job)) == ("succeeded", ["the last line"])


@pytest.mark.parametrize("under_way", [False, True])
async def test_a_worker_that_is_cancelled_writes_the_lines_of_what_it_ran(
    app: App, monkeypatch: pytest.MonkeyPatch, under_way: bool
) -> None:
    """Also those of a report that was under way and may not have arrived."""
    spoken, reporting = asyncio.Event(), asyncio.Event()
    workers: list[Worker] = []

    async def never(said: Sequence[JobReport]) -> Any:
        reporting.set()
        await asyncio.sleep(60)

    @app.task(name="speak")
    async def speak(*, ctx: Context = CONTEXT) -> None:
        ctx.log("said")
        if under_way:
            workers[0]._executor.reports._write_in_background()
        spoken.set()
        await asyncio.sleep(60)

    async def live() -> None:
        async with app.worker() as worker:
            workers.append(worker)
            await asyncio.sleep(60)

    monkeypatch.setattr(app.operations, "areport", never, raising=False)
    program = asyncio.create_task(live())
    job = await speak.aenqueue()
    await asyncio.wait_for(spoken.wait(), 30)
    if under_way:
        await asyncio.wait_for(reporting.wait(), 30)
    for task in asyncio.all_tasks():
        if task.get_name() == "perdure worker":
            task.cancel()
    program.cancel()
    with pytest.raises(asyncio.CancelledError):
        await program
    assert ((await job.arefresh()).state, await lines(app, job)) == ("ready", ["said"])


async def test_lines_that_find_no_room_when_they_are_put_back_are_counted(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers: list[Worker] = []
    report = app.operations.areport
    failed = asyncio.Event()

    async def fail_once(said: Sequence[JobReport]) -> Any:
        if not failed.is_set():
            await asyncio.sleep(0)
            failed.set()
            raise StoreAway
        return await report(said)

    @app.task(name="speak")
    async def speak(*, ctx: Context = CONTEXT) -> None:
        for n in range(MOST_LOGS):
            ctx.log(f"first {n}")
        workers[0]._executor.reports._write_in_background()
        await asyncio.sleep(0)
        for n in range(5):
            ctx.log(f"second {n}")
        await failed.wait()
        await asyncio.sleep(0.1)

    monkeypatch.setattr(app.operations, "areport", fail_once, raising=False)
    async with app.worker() as worker:
        workers.append(worker)
        job = await speak.aenqueue()
        await job.ajoin(30)
    written = await lines(app, job)
    assert "5 more lines were dropped" in written


async def test_lines_behind_a_success_that_was_committed_are_lost_and_the_log_says_so(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(name="speak")
    async def speak(*, ctx: Context = CONTEXT) -> None:
        async with ctx.transaction():
            pass
        ctx.log("after the fact")

    async with app.worker():
        job = await speak.aenqueue()
        await job.ajoin(30)
    assert (job.state, await lines(app, job)) == ("succeeded", [])
    assert f"1 lines of job {job.id} are lost" in caplog.text
