"""ctx.save while perdure's own database is away: it waits, and the attempt of a handler that it ends is not charged."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from perdure import CONTEXT, App, Context
from perdure.errors import JobFailed, StoreAway, Unavailable
from perdure.worker import save
from perdure.worker.operations import WorkerOperations
from perdure.worker.worker import Worker
from tests.harness.waiting import auntil
from tests.worker import process_app
from tests.worker.outage import Outage
from tests.worker.waiting import time_out


class Saver:
    """A task that saves once it is told to, and what became of its saves."""

    def __init__(self, app: App, run_in: str, *, name: str = "save", **options: Any) -> None:
        self.go_on = False
        self.attempts: list[int | None] = []
        self.catch: Any = ()
        self.raise_own = False

        async def on_loop(*, ctx: Context = CONTEXT) -> str:
            self.attempts.append(ctx.attempt)
            while not self.go_on:  # noqa: ASYNC110 - the same for a thread
                await asyncio.sleep(0.01)
            ctx.log("before the save")
            try:
                await ctx.asave({"page": 7})
            except self.catch as error:
                return self.caught(error)
            return "saved"

        def in_thread(*, ctx: Context = CONTEXT) -> str:
            self.attempts.append(ctx.attempt)
            while not self.go_on:
                time.sleep(0.01)
            ctx.log("before the save")
            try:
                ctx.save({"page": 7})
            except self.catch as error:
                return self.caught(error)
            return "saved"

        self.task: Any = app.task(name=name, max_attempts=1, **options)(
            on_loop if run_in == "async" else in_thread
        )

    def caught(self, error: Unavailable) -> str:
        if self.raise_own:
            raise RuntimeError("of its own") from error
        return "caught"


def app_on(outage: Outage, *, patience: float) -> App:
    app = App(outage.url, synchronous="normal")
    app.use_database(patience=patience)
    return app


both = pytest.mark.parametrize("run_in", ["async", "thread"])


async def until_ended(worker: Worker) -> None:
    """Until the handlers have ended; their outcomes wait for the database."""
    await auntil(lambda: all(attempt.ended for attempt in worker._executor.attempts.values()))


@both
async def test_what_a_save_costs_that_an_outage_outlasts(outage: Outage, run_in: str) -> None:
    """Nothing, if its error ends the handler; a handler that catches it decides for itself."""
    async with app_on(outage, patience=0.2) as app:
        saver = Saver(app, run_in, fatal=Exception)
        catching, failing = (Saver(app, run_in, name=name) for name in ("catch", "fail"))
        catching.catch = failing.catch = Unavailable
        failing.raise_own = True
        savers = [saver, catching, failing]
        async with app.worker(poll=0.1) as worker:
            saved, caught, failed = [await one.task.aenqueue() for one in savers]
            await auntil(lambda: all(one.attempts for one in savers))
            with outage.begin():
                for one in savers:
                    one.go_on = True
                await until_ended(worker)
                saver.go_on = False
            await auntil(lambda: len(saver.attempts) == 2)
            saver.go_on = True
            assert await saved.aget(60) == "saved"
            assert await caught.aget(60) == "caught"
            with pytest.raises(JobFailed) as error:
                await failed.aget(60)
        assert saver.attempts == [1, 1], "the first one is not counted"
        (first,) = [one for one in await app.ajob_history(saved.id) if one.what == "interrupted"]
        assert first.detail["code"] in ("store.away", "store.busy")
        assert first.detail["decided_by"] == "interruption"
        assert catching.attempts == [1]
        said = [one.detail["message"] for one in await app.ajob_history(caught.id) if one.what == "log"]
        assert said == ["before the save"], "written later"
        assert (error.value.error_code, failing.attempts) == ("job.error", [1]), "its own error costs it"


@both
async def test_a_save_waits_for_a_database_that_comes_back(
    outage: Outage, run_in: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the store reports an outage at once, as for a file that was moved."""
    async with app_on(outage, patience=30) as app:
        saver = Saver(app, run_in)
        saver.catch = Unavailable
        saver.go_on = True
        refused: list[int] = []
        stored = WorkerOperations._save

        def away(self: WorkerOperations, report: Any) -> Any:
            if len(refused) < 4:
                refused.append(1)
                raise StoreAway
            return stored(self, report)

        monkeypatch.setattr(WorkerOperations, "_save", away)
        async with app.worker(poll=0.1):
            job = await saver.task.aenqueue()
            assert await job.aget(60) == "saved"
        assert (saver.attempts, len(refused)) == ([1], 4)


@both
async def test_a_timeout_while_a_save_waits_costs_no_attempt(
    outage: Outage, run_in: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(save, "LONG_SAVE", 0.0)
    async with app_on(outage, patience=1) as app:
        saver = Saver(app, run_in)
        async with app.worker(poll=0.1) as worker:
            job = await saver.task.aenqueue()
            await auntil(lambda: saver.attempts)
            (attempt,) = worker._executor.attempts.values()
            with outage.begin():
                saver.go_on = True
                await auntil(lambda: attempt.context.save_call._began is not None)
                time_out(worker)
                await until_ended(worker)
                saver.go_on = False
            assert attempt.stop_reason == "timeout"
            await auntil(lambda: len(saver.attempts) == 2)
            saver.go_on = True
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


async def test_the_same_in_a_process(outage: Outage, tmp_path: Path) -> None:
    async with process_app.make(outage.url) as app:
        app.use_database(patience=0.2)
        async with app.worker(poll=0.1, processes=1, target=process_app.TARGET) as worker:
            begun, go_on = tmp_path / "begun", tmp_path / "go on"
            job = await app.tasks["save_when"].aenqueue(str(begun), str(go_on))
            await auntil(begun.exists)
            with outage.begin():
                go_on.touch()
                await until_ended(worker)
                go_on.unlink()
            await auntil(lambda: begun.read_text().count("begun") == 2)
            go_on.touch()
            assert await job.aget(60) == 1, "its first attempt is not counted"
        assert [one.what for one in await app.ajob_history(job.id)].count("interrupted") == 1
