"""ctx.save while perdure's own database is away: it waits, and the attempt of a handler that it ends is not charged."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from perdure import CONTEXT, App, Context
from perdure.errors import JobFailed, StoreAway, Unavailable
from perdure.worker.operations import WorkerOperations
from perdure.worker.worker import Worker
from tests.harness.waiting import auntil
from tests.worker import process_app
from tests.worker.outage import Outage


class Saver:
    """An app with a task that saves once it is told to, and what became of its saves."""

    def __init__(self, app: App, run_in: str, **options: Any) -> None:
        self.app = app
        self.go_on = False
        self.attempts: list[int | None] = []
        self.caught: list[str] = []
        self.catch: Any = ()
        self.raise_own = False

        async def on_loop(*, ctx: Context = CONTEXT) -> str:
            self.attempts.append(ctx.attempt)
            while not self.go_on:  # noqa: ASYNC110 - the same for a thread
                await asyncio.sleep(0.01)
            try:
                await ctx.asave({"page": 7})
            except self.catch as error:
                return self.note(error)
            return "saved"

        def in_thread(*, ctx: Context = CONTEXT) -> str:
            self.attempts.append(ctx.attempt)
            while not self.go_on:
                time.sleep(0.01)
            try:
                ctx.save({"page": 7})
            except self.catch as error:
                return self.note(error)
            return "saved"

        self.task: Any = app.task(name="save", max_attempts=1, **options)(
            on_loop if run_in == "async" else in_thread
        )

    def note(self, error: Unavailable) -> str:
        self.caught.append(error.code)
        if self.raise_own:
            raise RuntimeError("of its own") from error
        return "caught"


def app_on(outage: Outage, *, patience: float) -> App:
    app = App(outage.url, synchronous="normal")
    app.use_database(patience=patience)
    return app


both = pytest.mark.parametrize("run_in", ["async", "thread"])


async def until_ended(worker: Worker) -> None:
    """Until the handler has ended; the outcome waits for the database."""
    await auntil(lambda: all(attempt.ended for attempt in worker._executor.attempts.values()))


@both
async def test_an_outage_that_outlasts_the_save_costs_no_attempt(outage: Outage, run_in: str) -> None:
    async with app_on(outage, patience=0.2) as app:
        saver = Saver(app, run_in, fatal=Exception)
        async with app.worker(poll=0.1) as worker:
            job = await saver.task.aenqueue()
            await auntil(lambda: saver.attempts)
            with outage.begin():
                saver.go_on = True
                await until_ended(worker)
            assert await job.aget(60) == "saved"
        assert saver.attempts == [1, 1], "the first one is not counted"
        (first,) = [one for one in await app.ajob_history(job.id) if one.what == "interrupted"]
        assert first.detail["code"] in ("store.away", "store.busy")
        assert first.detail["decided_by"] == "interruption"


@both
async def test_a_save_waits_for_a_database_that_comes_back(
    outage: Outage, run_in: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the store reports an outage at once, as for a file that was moved."""
    async with app_on(outage, patience=30) as app:
        saver = Saver(app, run_in)
        saver.catch = Unavailable
        refused: list[int] = []
        save = WorkerOperations._save

        def away(self: WorkerOperations, report: Any) -> Any:
            if len(refused) < 4:
                refused.append(1)
                raise StoreAway
            return save(self, report)

        monkeypatch.setattr(WorkerOperations, "_save", away)
        async with app.worker(poll=0.1):
            job = await saver.task.aenqueue()
            await auntil(lambda: saver.attempts)
            saver.go_on = True
            assert await job.aget(60) == "saved"
        assert (saver.attempts, saver.caught, len(refused)) == ([1], [], 4)


@both
async def test_a_handler_that_catches_the_error_decides_for_itself(outage: Outage, run_in: str) -> None:
    async with app_on(outage, patience=0.2) as app:
        saver = Saver(app, run_in)
        saver.catch = Unavailable
        async with app.worker(poll=0.1) as worker:
            job = await saver.task.aenqueue()
            await auntil(lambda: saver.attempts)
            with outage.begin():
                saver.go_on = True
                await until_ended(worker)
            assert await job.aget(60) == "caught"
        assert saver.attempts == [1]


@both
async def test_an_error_of_the_handlers_own_costs_its_attempt(outage: Outage, run_in: str) -> None:
    async with app_on(outage, patience=0.2) as app:
        saver = Saver(app, run_in)
        saver.catch, saver.raise_own = Unavailable, True
        async with app.worker(poll=0.1) as worker:
            job = await saver.task.aenqueue()
            await auntil(lambda: saver.attempts)
            with outage.begin():
                saver.go_on = True
                await until_ended(worker)
            with pytest.raises(JobFailed) as failed:
                await job.aget(60)
        assert (failed.value.error_code, saver.attempts) == ("job.error", [1])


@both
async def test_a_timeout_while_a_save_waits_costs_no_attempt(outage: Outage, run_in: str) -> None:
    async with app_on(outage, patience=4) as app:
        saver = Saver(app, run_in, timeout=2)
        async with app.worker(poll=0.1) as worker:
            job = await saver.task.aenqueue()
            await auntil(lambda: saver.attempts)
            with outage.begin():
                saver.go_on = True
                await until_ended(worker)
            assert await job.aget(60) == "saved"
        assert saver.attempts == [1, 1]


async def test_a_timeout_of_a_handler_that_saves_again_and_again_is_one(outage: Outage) -> None:
    async with app_on(outage, patience=30) as app:

        @app.task(name="spin", max_attempts=1, timeout=1.5)
        async def spin(*, ctx: Context = CONTEXT) -> None:
            while True:
                await ctx.asave(1)

        async with app.worker():
            job = await spin.aenqueue()
            with pytest.raises(JobFailed) as failed:
                await job.aget(60)
        assert failed.value.error_code == "job.timeout"


async def test_the_lines_before_a_save_that_failed_are_written_later(outage: Outage) -> None:
    async with app_on(outage, patience=0.2) as app:
        begun, go_on = asyncio.Event(), asyncio.Event()

        @app.task(name="speak", max_attempts=1)
        async def speak(*, ctx: Context = CONTEXT) -> str:
            begun.set()
            await go_on.wait()
            ctx.log("before the save")
            with suppress(Unavailable):
                await ctx.asave(1)
            return "done"

        async with app.worker(poll=0.1) as worker:
            job = await speak.aenqueue()
            await begun.wait()
            with outage.begin():
                go_on.set()
                await until_ended(worker)
            assert await job.aget(60) == "done"
        said = [one.detail["message"] for one in await app.ajob_history(job.id) if one.what == "log"]
        assert said == ["before the save"]


async def test_the_same_in_a_process(outage: Outage, tmp_path: Path) -> None:
    async with process_app.make(outage.url) as app:
        app.use_database(patience=0.2)
        async with app.worker(poll=0.1, processes=1, target=process_app.TARGET) as worker:
            job = await app.tasks["save_when"].aenqueue(str(tmp_path / "begun"), str(tmp_path / "go on"))
            await auntil((tmp_path / "begun").exists)
            with outage.begin():
                (tmp_path / "go on").touch()
                await until_ended(worker)
            assert await job.aget(60) == 1, "its first attempt is not counted"
        assert [one.what for one in await app.ajob_history(job.id)].count("interrupted") == 1
