"""The app of the workers that tests start in processes of their own."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from perdure import CONTEXT, App, Context
from perdure.model.backoff import Backoff

QUICK = Backoff(base=0.01, cap=0.05)


def note(path: str, text: str) -> None:
    """One line in a file that the test reads."""
    with Path(path).open("a") as file:
        file.write(f"{text}\n")


async def add(a: int, b: int) -> int:
    return a + b


def add_in_thread(a: int, b: int) -> int:
    return a + b


async def rest(seconds: float, note_to: str | None = None) -> str:
    if note_to:
        note(note_to, f"start {os.getpid()}")
    await asyncio.sleep(seconds)
    return "rested"


async def rest_until(path: str, note_to: str) -> str:
    """Until the file is there."""
    note(note_to, f"start {os.getpid()}")
    while not Path(path).exists():  # noqa: ASYNC110, ASYNC240
        await asyncio.sleep(0.01)
    return "rested"


def rest_in_thread(seconds: float = 60, note_to: str | None = None) -> str:
    if note_to is not None:
        note(note_to, "start")
    time.sleep(seconds)
    return "rested"


async def rest_aside(note_to: str) -> None:
    """Cancelled, it leaves its thread behind."""
    note(note_to, "start")
    await asyncio.to_thread(threading.Event().wait)


async def rest_in_executor(note_to: str) -> None:
    """The same with a thread that Python waits for."""
    note(note_to, "start")
    await asyncio.get_running_loop().run_in_executor(ThreadPoolExecutor(), threading.Event().wait)


def rest_until_asked(note_to: str, *, ctx: Context = CONTEXT) -> None:
    """A thread's handler that looks whether it should end."""
    note(note_to, "start")
    for _ in range(3000):
        if ctx.cancel_requested:
            note(note_to, "asked")
            return
        time.sleep(0.01)


async def rest_until_canceled(note_to: str) -> None:
    note(note_to, "start")
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        note(note_to, "asked")
        raise


async def block(seconds: float, note_to: str) -> str:
    """Holds up the event loop, as no async code should."""
    note(note_to, "start")
    time.sleep(seconds)  # noqa: ASYNC251
    note(note_to, "end")
    return "blocked"


async def block_until(path: str, note_to: str) -> str:
    """The same until the file is there."""
    note(note_to, "start")
    while not Path(path).exists():  # noqa: ASYNC240
        time.sleep(0.01)  # noqa: ASYNC251
    note(note_to, "end")
    return "blocked"


async def speak(seconds: float, *, ctx: Context = CONTEXT) -> None:
    """Says how far it is, several times a second."""
    for i in range(int(seconds * 5)):
        ctx.progress(i)
        await asyncio.sleep(0.2)


async def ignore_cancel(note_to: str) -> None:
    """An async handler that cannot be stopped."""
    note(note_to, "start")
    while True:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            note(note_to, "asked")


def never_end(note_to: str) -> None:
    note(note_to, "start")
    threading.Event().wait()


def make(url: str | None = None, **options: Any) -> App:
    app = App(url, synchronous="normal", **options)
    for function in (
        add,
        add_in_thread,
        rest,
        rest_until,
        rest_in_thread,
        rest_aside,
        rest_in_executor,
        rest_until_asked,
        rest_until_canceled,
        block,
        block_until,
        speak,
        ignore_cancel,
    ):
        app.task(name=function.__name__, backoff=QUICK, max_crashes=None)(function)
    app.task(name="never_end", timeout=0.2, timeout_grace=0.2, max_attempts=1)(never_end)
    app.task(name="swallow", timeout=0.2, timeout_grace=0.2, max_attempts=1)(ignore_cancel)
    app.task(name="lose", max_attempts=1, max_crashes=None)(rest)
    return app


app = make(lease=float(os.environ.get("WORKER_LEASE", "30")))
