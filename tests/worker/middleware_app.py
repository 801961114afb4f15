"""Tasks that enqueue others, under a middleware; a child finds the app as ``tests.worker.middleware_app:app``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from perdure import CONTEXT, App, Context
from perdure.request.middleware import Middleware

TARGET = "tests.worker.middleware_app:app"


class Lineage(Middleware):
    """A job tells which one enqueued it, and takes no offence at stumbling."""

    @contextmanager
    def enqueue(self, task: str, meta: dict[str, Any]) -> Iterator[None]:
        meta["by"] = Context.current().job_id
        yield

    @contextmanager
    def run(self, task: str, context: Context) -> Iterator[None]:
        with suppress(Stumbled):
            yield


class Stumbled(Exception): ...


def child() -> None: ...


def parent(at_once: bool, *, ctx: Context = CONTEXT) -> list[str]:
    child = app.tasks["child"]
    return ctx.enqueue(child.job(), child.using(meta={"mine": 1}).job(), at_once=at_once)


async def aparent(at_once: bool, *, ctx: Context = CONTEXT) -> list[str]:
    child = app.tasks["child"]
    return await ctx.aenqueue(child.job(), child.using(meta={"mine": 1}).job(), at_once=at_once)


def stumble() -> str:
    raise Stumbled


async def astumble() -> str:
    raise Stumbled


def make(url: str | None = None) -> App:
    app = App(url, synchronous="normal")
    app.use(Lineage())
    app.task(name="child", queue="elsewhere")(child)
    app.task(name="loop")(aparent)
    app.task(name="thread")(parent)
    app.task(name="process", run_in="process")(parent)
    app.task(name="async process", run_in="process")(aparent)
    app.task(name="stumbling loop")(astumble)
    app.task(name="stumbling thread")(stumble)
    app.task(name="stumbling process", run_in="process")(stumble)
    app.task(name="stumbling async process", run_in="process")(astumble)
    return app


app = make()
