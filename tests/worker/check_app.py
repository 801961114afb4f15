"""Handlers that ask whether to go on; a child finds the app as ``tests.worker.check_app:app``."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from threading import Event
from typing import Any

from perdure import CONTEXT, App, Context

TARGET = "tests.worker.check_app:app"


def look(*, ctx: Context = CONTEXT) -> str:
    ctx.save("begun")
    return go_on(ctx)


def go_on(ctx: Context) -> str:
    """A second attempt returns."""
    while ctx.attempt == 1:
        ctx.check()
        Event().wait(0.01)
    return "went on"


async def alook(*, ctx: Context = CONTEXT) -> str:
    """It does not end where it is cancelled, but later."""
    await ctx.asave("begun")
    if ctx.attempt == 1:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        ctx.check()
    return "went on"


async def look_elsewhere(*, ctx: Context = CONTEXT) -> str:
    await ctx.asave("begun")
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(60)
    return await asyncio.to_thread(go_on, ctx)


def save(*, ctx: Context = CONTEXT) -> None:
    """Hears of a cancel by what it saves."""
    while True:
        ctx.save("begun")
        ctx.check()
        Event().wait(0.05)


def make(url: str | None = None, **options: Any) -> App:
    app = App(url, synchronous="normal", **options)
    app.task(name="thread", backoff=0)(look)
    app.task(name="loop", backoff=0)(alook)
    app.task(name="both", backoff=0)(look_elsewhere)
    app.task(name="process", backoff=0, run_in="process")(look)
    app.task(name="async process", backoff=0, run_in="process")(alook)
    app.task(name="save", backoff=0)(save)
    app.task(name="save in a process", backoff=0, run_in="process")(save)
    return app


app = make()
