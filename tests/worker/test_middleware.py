"""Middleware surrounds every enqueue and every run, and may carry meta from one to the other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from perdure import CONTEXT, App, Context
from perdure.request.middleware import Middleware
from tests.worker import middleware_app

TRACE: ContextVar[str] = ContextVar("trace", default="none")
EVERYWHERE = ["loop", "thread", "process", "async process"]


class Noting(Middleware):
    def __init__(self, name: str, notes: list[str]) -> None:
        self.name = name
        self.notes = notes

    @contextmanager
    def run(self, task: str, context: Context) -> Iterator[None]:
        self.notes.append(f"{self.name} in {task}")
        try:
            yield
        except Exception as error:
            self.notes.append(f"{self.name} saw {type(error).__name__}")
            raise
        finally:
            self.notes.append(f"{self.name} out")


class Tracing(Middleware):
    """The seam for tracing: what is current where a job is enqueued is current where it runs."""

    @contextmanager
    def enqueue(self, task: str, meta: dict[str, Any]) -> Iterator[None]:
        meta["trace"] = TRACE.get()
        yield

    @contextmanager
    def run(self, task: str, context: Context) -> Iterator[None]:
        before = TRACE.set(context.meta["trace"])
        yield
        TRACE.reset(before)


class Swallowing(Middleware):
    @contextmanager
    def run(self, task: str, context: Context) -> Iterator[None]:
        with suppress(ValueError):
            yield


class Replacing(Middleware):
    @contextmanager
    def run(self, task: str, context: Context) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            raise KeyError("instead") from error


@pytest.fixture(params=["async", "thread"])
def work(request: pytest.FixtureRequest, app: App) -> Any:
    """A task that says what trace it sees, or fails."""

    def in_thread(fails: bool = False) -> str:
        if fails:
            raise ValueError
        return TRACE.get()

    async def on_loop(fails: bool = False) -> str:
        return in_thread(fails)

    return app.task(name="work", max_attempts=1)(on_loop if request.param == "async" else in_thread)


async def test_the_first_given_is_the_outermost(app: App, work: Any) -> None:
    notes: list[str] = []
    app.use(Noting("a", notes), Noting("b", notes))
    app.use(Noting("c", notes))
    async with app.worker():
        await (await work.aenqueue()).ajoin(30)
    assert notes == ["a in work", "b in work", "c in work", "c out", "b out", "a out"]


async def test_an_error_passes_through_each(app: App, work: Any) -> None:
    notes: list[str] = []
    app.use(Noting("a", notes), Noting("b", notes))
    async with app.worker():
        job = await work.aenqueue(fails=True)
        await job.ajoin(30)
    assert notes == ["a in work", "b in work", "b saw ValueError", "b out", "a saw ValueError", "a out"]
    assert job.state == "failed"


async def test_meta_written_at_enqueue_is_seen_at_run_and_so_are_variables(app: App, work: Any) -> None:
    app.use(Tracing())
    async with app.worker():
        token = TRACE.set("t-1")
        first = await work.using(meta={"mine": 1}).aenqueue()
        TRACE.reset(token)
        second = await work.aenqueue()
        assert (await first.aget(30), await second.aget(30)) == ("t-1", "none")
    assert first.meta == {"mine": 1, "trace": "t-1"}


async def test_jobs_that_a_handler_enqueues_pass_through_it_as_well(url: str) -> None:
    async with (
        middleware_app.make(url) as app,
        app.worker(queues=["default"], processes=1, target=middleware_app.TARGET),
    ):
        for where, at_once in product(EVERYWHERE, (False, True)):
            parent = await app.aenqueue(where, {"at_once": at_once})
            children = await app.aget_jobs(await parent.aget(60))
            metas = [child and child.meta for child in children]
            assert metas == [{"by": parent.id}, {"mine": 1, "by": parent.id}], (where, at_once)


async def test_an_error_that_a_middleware_swallows_is_none(url: str) -> None:
    async with middleware_app.make(url) as app, app.worker(processes=1, target=middleware_app.TARGET):
        for where in EVERYWHERE:
            assert await (await app.aenqueue(f"stumbling {where}")).aget(60) is None, where


class Refusing(Middleware):
    """At its end, of a child only."""

    @contextmanager
    def enqueue(self, task: str, meta: dict[str, Any]) -> Iterator[None]:
        yield
        if task == "child":
            raise PermissionError


@pytest.mark.parametrize("at_once", [False, True])
async def test_what_a_middleware_refuses_at_its_end_is_not_enqueued_with_the_success(
    app: App, at_once: bool
) -> None:
    """Though the handler goes on. ``at_once`` has written it already, like any enqueue outside of a handler."""
    app.use(Refusing(), Tracing())
    child: Any = app.task(name="child", queue="elsewhere")(lambda: None)

    @app.task(name="parent")
    async def parent(*, ctx: Context = CONTEXT) -> str:
        with pytest.raises(PermissionError):
            await ctx.aenqueue(child.job(), child.using(priority=1).job(), at_once=at_once)
        return "swallowed"

    async with app.worker(queues=["default"]):
        assert await (await parent.aenqueue()).aget(30) == "swallowed"
    assert len(await app.alist_jobs(task="child")) == (2 if at_once else 0)
    with pytest.raises(PermissionError):
        await child.aenqueue()
    assert len(await app.alist_jobs(task="child")) == (3 if at_once else 1)


async def test_an_error_that_a_middleware_swallows_leaves_a_success_without_result(
    app: App, work: Any
) -> None:
    app.use(Swallowing())
    async with app.worker():
        job = await work.aenqueue(fails=True)
        assert await job.aget(30) is None


class Breaking(Middleware):
    @contextmanager
    def run(self, task: str, context: Context) -> Iterator[None]:
        if task == "work":
            raise KeyError("at the door")
        yield


@pytest.mark.parametrize("broken", [Breaking(), Replacing()])
async def test_no_frame_of_ours_stands_in_the_traceback_of_an_error_in_it(
    app: App, work: Any, broken: Middleware
) -> None:
    app.use(Noting("outer", []), broken)
    async with app.worker():
        job = await work.aenqueue(fails=True)
        await job.ajoin(30)
    assert job.error is not None
    trace = str(job.error.trace)
    files = [Path(name) for name in re.findall(r'File "(.+?)"', trace)]
    assert files, trace
    assert set(files) == {Path(__file__)}
    assert trace.startswith("Traceback")
    assert trace.count("Traceback") == (2 if isinstance(broken, Replacing) else 1)


async def test_an_error_may_be_replaced(app: App, work: Any) -> None:
    app.use(Replacing())
    async with app.worker():
        job = await work.aenqueue(fails=True)
        await job.ajoin(30)
    assert job.error is not None
    assert job.error.message == "KeyError: 'instead'"
