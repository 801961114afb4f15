"""An app whose tasks run in processes of their own; a child finds it as ``tests.worker.process_app:app``."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from perdure import CONTEXT, App, Context, Fatal
from tests.worker.worker_app import QUICK, note

TARGET = "tests.worker.process_app:app"
TIMEOUT = 60.0
"""Seconds that ``deadline`` may take."""


def pid() -> int:
    return os.getpid()


async def async_pid() -> int:
    return os.getpid()


def tell(*, ctx: Context = CONTEXT) -> dict[str, Any]:
    """All that a handler can learn of its job."""
    assert Context.current() is ctx
    return {
        "job": ctx.job_id,
        "attempt": ctx.attempt,
        "run": ctx.run,
        "tenant": ctx.tenant,
        "meta": dict(ctx.meta),
        "worker": ctx.worker,
        "deadline": ctx.deadline is not None,
        "thread": threading.current_thread() is threading.main_thread(),
    }


def deadline(*, ctx: Context = CONTEXT) -> float:
    assert ctx.deadline is not None
    return ctx.deadline.timestamp()


def speak(*, ctx: Context = CONTEXT) -> Any:
    ctx.stage("half")
    ctx.progress(1, 2, "one \ud800 of two")
    ctx.log("a line \ud800", level="warning")
    if ctx.checkpoint is None:
        ctx.save({"at": 1})
        raise ValueError("once more")
    return ctx.checkpoint


async def aspeak(*, ctx: Context = CONTEXT) -> Any:
    if ctx.checkpoint is None:
        await ctx.asave([1, "two"])
        raise ValueError("once more")
    return ctx.checkpoint


def fail(how: str) -> None:
    if how == "fatal":
        raise Fatal("no good", code="process.jam")
    raise ValueError(f"no {how} \ud800")


def die(how: str) -> None:
    match how:
        case "exit":
            os._exit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "fault":
            ctypes.string_at(0)


def wait_for(path: str) -> str:
    """Ends when the file is there."""
    Path(f"{path}.begun").touch()
    while not Path(path).exists():
        time.sleep(0.01)
    return "waited"


async def await_for(path: str) -> str:
    Path(f"{path}.begun").touch()  # noqa: ASYNC240
    while not Path(path).exists():  # noqa: ASYNC110, ASYNC240
        await asyncio.sleep(0.01)
    return "waited"


def linger(note_to: str) -> None:
    """Starts a process of its own, and cleans up if it is let."""
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        note(note_to, f"{os.getpid()} {other.pid}")
        time.sleep(600)
    finally:
        note(note_to, "cleaned up")


def seize(note_to: str) -> None:
    """The same, and lets no other thread run."""
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    note(note_to, f"{os.getpid()} {other.pid}")
    ctypes.PyDLL(None).sleep(600)


def fork(note_to: str) -> None:
    """A process of the worker's own kind, which outlives it."""
    if pid := os.fork():
        note(note_to, f"{pid}")
        return
    time.sleep(600)


async def alinger(note_to: str) -> None:
    try:
        note(note_to, f"{os.getpid()} {os.getpid()}")
        await asyncio.sleep(600)
    finally:
        note(note_to, "cleaned up")


def be_deaf(note_to: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note(note_to, f"{os.getpid()} {os.getpid()}")
    time.sleep(600)


def save_late(note_to: str, *, ctx: Context = CONTEXT) -> None:
    """Saves once its lease is gone."""
    note(note_to, "start")
    wait_for(f"{note_to}.go")
    try:
        ctx.save(1)
    except BaseException as error:
        note(note_to, f"{type(error).__name__} {getattr(error, 'code', '')}")
        raise


def save_when(begun: str, go_on: str, *, ctx: Context = CONTEXT) -> int:
    """Says that it has begun, and saves once it is told to."""
    note(begun, "begun")
    while not Path(go_on).exists():
        time.sleep(0.01)
    ctx.save(1)
    return ctx.attempt


def parent(*, ctx: Context = CONTEXT) -> str:
    (child,) = ctx.enqueue(app.tasks["pid"].job())
    return child


def spread(n: int, size: int, *, ctx: Context = CONTEXT) -> int:
    """Enqueues so many jobs with so many bytes each."""
    return len(ctx.enqueue(*(app.tasks["keep"].job("x" * size) for _ in range(n))))


def swell(size: int, *, save: bool, ctx: Context = CONTEXT) -> str:
    """Returns so many letters, or saves them."""
    if save:
        ctx.save("x" * size)
    return "x" * size


async def keep(what: str) -> None:
    """For its arguments."""


def commit(*, ctx: Context = CONTEXT) -> None:
    with ctx.transaction():
        ctx.log("in a transaction")


async def anywhere() -> int:
    return os.getpid()


def make(url: str | None = None, **options: Any) -> App:
    app = App(url, synchronous="normal", **options)
    for function in (
        pid,
        async_pid,
        tell,
        speak,
        aspeak,
        wait_for,
        await_for,
        linger,
        seize,
        alinger,
        save_late,
        parent,
        spread,
        commit,
    ):
        app.task(name=function.__name__, run_in="process", backoff=QUICK)(function)
    app.task(name="fail", run_in="process", max_attempts=1)(fail)
    app.task(name="save_when", run_in="process", max_attempts=1)(save_when)
    app.task(name="swell", run_in="process", max_attempts=1)(swell)
    app.task(name="die", run_in="process", max_attempts=1)(die)
    app.task(name="deadline", run_in="process", max_attempts=1, timeout=TIMEOUT)(deadline)
    app.task(name="overrun", run_in="process", max_attempts=1)(linger)
    app.task(name="be_deaf", run_in="process", max_attempts=1)(be_deaf)
    app.task(name="anywhere", backoff=QUICK)(anywhere)
    app.task(name="fork")(fork)
    app.task(name="keep", queue="kept")(keep)
    return app


app = make(lease=float(os.environ.get("MILL_LEASE", "30")))

if __name__ == "__main__":
    sys.exit(app.run_worker(drain=0, processes=1))
