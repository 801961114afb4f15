"""What a handler says is written about once a second and with its outcome, in the order in which it was said."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from perdure import CONTEXT, App, Context, Step, Workflow
from perdure.errors import InvalidOption, JobFailed, LeaseLost
from perdure.ops import browse
from tests.harness.waiting import auntil
from tests.worker.refusing import refusing


async def lines(app: App, job: Any) -> list[str]:
    traces = await app.store.aperform(browse.trace_job, job.id)
    assert traces is not None
    return [line.message for line in traces.logs]


@pytest.mark.parametrize("run_in", ["async", "thread"])
async def test_words_are_written_while_the_handler_runs(app: App, run_in: str) -> None:
    go_on = False

    def speak(ctx: Context) -> None:
        ctx.progress(1, 4, "first")
        ctx.stage("reading")
        ctx.log("hello")

    async def on_loop(*, ctx: Context = CONTEXT) -> None:
        speak(ctx)
        while not go_on:  # noqa: ASYNC110 - the same for a thread
            await asyncio.sleep(0.01)

    def in_thread(*, ctx: Context = CONTEXT) -> None:
        speak(ctx)
        while not go_on:
            time.sleep(0.01)

    task = app.task(name="speak")(on_loop if run_in == "async" else in_thread)
    async with app.worker():
        job = await task.aenqueue()

        async def heard() -> bool:
            return (await job.arefresh()).progress == (1, 4, "first", "reading") and await lines(
                app, job
            ) == ["hello"]

        await auntil(heard)
        assert job.state == "running"
        go_on = True
        await job.aget(30)


async def test_the_last_words_come_with_the_outcome_and_in_order(app: App) -> None:
    @app.task(name="speak")
    async def speak(*, ctx: Context = CONTEXT) -> None:
        for i in range(20):
            ctx.log(f"line {i}")
            ctx.progress(i, 20)
        ctx.stage("end")

    async with app.worker():
        job = await speak.aenqueue()
        await job.aget(30)
        await job.arefresh()
        assert job.progress == (19, 20, None, "end")
        assert await lines(app, job) == [f"line {i}" for i in range(20)]


async def test_lines_beyond_the_limit_are_counted(app: App) -> None:
    @app.task(name="chatter")
    async def chatter(*, ctx: Context = CONTEXT) -> None:
        for i in range(1_005):
            ctx.log(str(i))

    async with app.worker():
        job = await chatter.aenqueue()
        await job.aget(30)
        said = await lines(app, job)
    assert said[-2:] == ["999", "5 more lines were dropped"]


@pytest.mark.parametrize("run_in", ["async", "thread"])
async def test_save_is_durable_when_it_returns(app: App, run_in: str) -> None:
    seen: list[Any] = []

    async def on_loop(*, ctx: Context = CONTEXT) -> None:
        seen.append(ctx.checkpoint)
        await ctx.asave({"page": 7})
        seen.append((await app.aget_job(ctx.job_id or "")).row.checkpoint)  # type: ignore[union-attr]
        if ctx.attempt == 1:
            raise ValueError

    def in_thread(*, ctx: Context = CONTEXT) -> None:
        seen.append(ctx.checkpoint)
        ctx.save({"page": 7})
        seen.append(app.get_job(ctx.job_id or "").row.checkpoint)  # type: ignore[union-attr]
        if ctx.attempt == 1:
            raise ValueError

    task = app.task(name="save", backoff=0.01)(on_loop if run_in == "async" else in_thread)
    async with app.worker(poll=0.05):
        await (await task.aenqueue()).aget(30)
    assert seen == [None, '{"page":7}', {"page": 7}, '{"page":7}']


@pytest.mark.parametrize("code", ["P0001", "42501"])
@pytest.mark.parametrize("also_says", [False, True])
async def test_a_checkpoint_that_the_database_refuses_fails_the_attempt(
    app: App, url: str, code: str, also_says: bool
) -> None:
    """Before, the save returned as if the checkpoint were stored."""
    saved = False

    @app.task(name="save", max_attempts=1)
    async def save(*, ctx: Context = CONTEXT) -> None:
        nonlocal saved
        if also_says:
            ctx.log("on the way")
        await ctx.asave(1)
        saved = True

    await app.asave_tasks()
    job = await save.aenqueue()
    with refusing(url, "NEW.checkpoint IS NOT NULL", code=code):
        async with app.worker():
            with pytest.raises(JobFailed) as failed:
                await job.aget(30)
    assert not saved
    assert failed.value.error_code == (
        "store.forbidden" if code == "42501" and url.startswith("postgres") else "store.refused"
    )


async def test_a_checkpoint_is_stored_even_if_what_was_said_before_it_is_refused(
    app: App, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(name="save")
    async def save(*, ctx: Context = CONTEXT) -> None:
        ctx.progress(1, 2)
        await ctx.asave(1)

    await app.asave_tasks()
    job = await save.aenqueue()
    with refusing(url, "NEW.progress_done IS NOT NULL"):
        async with app.worker():
            await job.aget(30)
    await job.arefresh()
    assert job.row.checkpoint == "1"  # type: ignore[union-attr]
    (line,) = (line for line in caplog.messages if "cannot be recorded" in line)
    assert job.id in line


async def test_a_save_without_its_lease_is_refused(app: App) -> None:
    caught: list[type[BaseException]] = []
    saved = threading.Event()

    # In a thread: a coroutine would be cancelled if the worker hears of its loss before the save.
    @app.task(name="save", backoff=3600)
    def save(*, ctx: Context = CONTEXT) -> None:
        app.operations.retire(ctx.worker or "")
        app.operations.rescue()
        try:
            ctx.save(1)
        except LeaseLost as error:
            caught.append(type(error))
            raise
        finally:
            saved.set()

    async with app.worker():
        job = await save.using(max_attempts=1).aenqueue()
        await asyncio.to_thread(saved.wait, 30)
    assert caught == [LeaseLost]
    assert (await job.arefresh()).row.checkpoint is None  # type: ignore[union-attr]


@pytest.mark.parametrize("method", ["enqueue", "append"])
async def test_jobs_that_a_handler_adds_at_once_without_its_lease_are_refused(app: App, method: str) -> None:
    caught: list[type[BaseException]] = []
    added = threading.Event()
    child: Any = app.task(name="child", queue="elsewhere")(lambda: None)

    @app.task(name="parent", max_attempts=1)
    def parent(*, ctx: Context = CONTEXT) -> None:
        app.operations.retire(ctx.worker or "")
        app.operations.rescue()
        try:
            if method == "enqueue":
                ctx.enqueue(child.job(), at_once=True)
            else:
                ctx.append([Step("more", child.job())], at_once=True)
        except LeaseLost as error:
            caught.append(type(error))
            raise
        finally:
            added.set()

    flow = Workflow("flow")
    flow.step("parent", parent.job())
    async with app.worker(queues=["default"]):
        await app.astart_workflow(flow)
        await asyncio.to_thread(added.wait, 30)
    assert caught == [LeaseLost]
    assert await app.alist_jobs(task="child") == []


@pytest.mark.parametrize(("done", "total"), [(5, 4), (1, 0), (-1, None), (None, -1), (1.5, None), (True, 3)])
def test_a_pair_that_cannot_be_true_is_refused_at_once(done: Any, total: Any) -> None:
    with pytest.raises(InvalidOption, match=r"^(done|total) must "):
        Context().progress(done, total)


async def test_a_pair_that_cannot_be_true_stops_nothing_and_takes_nothing_with_it(app: App) -> None:
    go_on = False

    @app.task(name="boast")
    async def boast(*, ctx: Context = CONTEXT) -> str:
        ctx.progress(5)
        ctx.progress(total=4)
        ctx.stage("boasting")
        ctx.log("and more")
        while not go_on:  # noqa: ASYNC110 - the same for a thread
            await asyncio.sleep(0.01)
        return "done"

    async with app.worker():
        job = await boast.aenqueue()

        async def heard() -> bool:
            return (await job.arefresh()).progress == (None, None, None, "boasting")

        await auntil(heard)
        assert await lines(app, job) == ["and more"]
        go_on = True
        assert await job.aget(30) == "done"


async def test_a_checkpoint_that_takes_a_bad_pair_along_keeps_the_rest(app: App) -> None:
    @app.task(name="boast")
    async def boast(*, ctx: Context = CONTEXT) -> None:
        with pytest.raises(InvalidOption):
            ctx.progress(5, 4, "refused")
        ctx.stage("boasting")
        ctx.progress(5, message="almost")
        ctx.progress(total=4)
        ctx.log("and more")
        await ctx.asave(1)

    async with app.worker():
        job = await boast.aenqueue()
        await job.aget(30)
        assert job.progress == (None, None, "almost", "boasting")
        assert await lines(app, job) == ["and more"]
        assert job.row.checkpoint == "1"  # type: ignore[union-attr]


async def test_a_bad_pair_at_the_end_does_not_stop_the_outcome(app: App) -> None:
    @app.task(name="boast")
    async def boast(*, ctx: Context = CONTEXT) -> str:
        ctx.progress(5)
        ctx.progress(total=4)
        return "done"

    async with app.worker():
        assert await (await boast.aenqueue()).aget(30) == "done"


async def test_a_report_under_way_is_not_overtaken_by_the_outcome(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written behind it, it would be refused and its lines lost."""
    under_way, go_on = asyncio.Event(), asyncio.Event()
    areport = app.operations.areport

    async def slowly(said: Any) -> Any:
        if not go_on.is_set():
            under_way.set()
            await asyncio.sleep(0.3)
        return await areport(said)

    monkeypatch.setattr(app.operations, "areport", slowly, raising=False)

    @app.task(name="speak")
    async def speak(*, ctx: Context = CONTEXT) -> None:
        ctx.log("first")
        ctx.progress(1)
        await under_way.wait()
        go_on.set()
        ctx.log("second")

    async with app.worker():
        job = await speak.aenqueue()
        await job.aget(30)
        assert await lines(app, job) == ["first", "second"]
        assert (await job.arefresh()).progress == (1, None, None, None)
