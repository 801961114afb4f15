"""An app whose handlers harm the worker that runs them. Workers in processes of their own serve it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

from perdure import CONTEXT, App, Context
from perdure.client.job import Job
from perdure.model.job import JobRow
from tests.harness.processes import Process
from tests.harness.waiting import until
from tests.worker.fleet import Fleet
from tests.worker.worker_app import QUICK, note


async def block(note_to: str, seconds: float = 60) -> None:
    """Holds the event loop."""
    note(note_to, f"start {os.getpid()}")
    time.sleep(seconds)  # noqa: ASYNC251


async def block_in_parts(note_to: str) -> None:
    """Holds the event loop again and again, never for long."""
    note(note_to, "start")
    while True:
        time.sleep(0.9)  # noqa: ASYNC251
        await asyncio.sleep(0.01)


async def block_once_given_up(note_to: str) -> None:
    """Does not let itself be cancelled, and holds the event loop after it was given up."""
    later = monotonic() + 2
    while monotonic() < later:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0.05)
    await block(note_to)


async def block_and_hold_the_log(note_to: str) -> None:
    """Nobody else can write a log line."""
    logging.getLogger().handlers[0].acquire()
    await block(note_to)


async def block_in_a_transaction(note_to: str, *, ctx: Context = CONTEXT) -> None:
    """Holds SQLite's write lock, or on PostgreSQL its own row, together with the event loop."""
    async with ctx.transaction() as conn:
        await ctx.asucceed(conn=conn)
        await block(note_to)


def wait_in_a_transaction(note_to: str, *, ctx: Context = CONTEXT) -> None:
    with ctx.transaction():
        note(note_to, "start")
        threading.Event().wait(60)


async def block_in_a_task(note_to: str) -> None:
    """Holds the event loop from a task of its own."""
    await asyncio.create_task(block(note_to))


async def block_in_a_callback(note_to: str) -> None:
    """Holds the event loop from where no task runs."""
    note(note_to, "start")
    asyncio.get_running_loop().call_soon(time.sleep, 60)
    await asyncio.sleep(60)


async def leave_a_callback(note_to: str) -> str:
    """Returns, and leaves something behind that holds the event loop."""
    note(note_to, "start")
    asyncio.get_running_loop().call_soon(time.sleep, 60)
    return "done"


async def block_for_five_seconds(note_to: str) -> None:
    await block(note_to, 5)


async def wait(note_to: str) -> None:
    note(note_to, "start")
    await asyncio.sleep(60)


def wait_in_thread(note_to: str, seconds: float = 60) -> str:
    note(note_to, "start")
    threading.Event().wait(seconds)
    note(note_to, "end")
    return "done"


def return_much_from_a_process(note_to: str, *, ctx: Context = CONTEXT) -> str:
    note(note_to, "start")
    threading.Event().wait(0.5)
    ctx.log("returning")
    return "x" * 900_000


async def cancel_all(note_to: str) -> None:
    note(note_to, f"start {os.getpid()}")
    for task in asyncio.all_tasks():
        task.cancel()
    await asyncio.sleep(60)


async def stop_loop(note_to: str) -> None:
    note(note_to, f"start {os.getpid()}")
    asyncio.get_running_loop().stop()
    await asyncio.sleep(60)


async def close_selector(note_to: str) -> None:
    """From here on the event loop cannot take a single turn."""
    note(note_to, f"start {os.getpid()}")
    os.close(asyncio.get_running_loop()._selector.fileno())  # type: ignore[attr-defined]
    await asyncio.sleep(60)


async def exit_in_a_task(note_to: str) -> None:
    """An exit in a task of the handler's own passes through the event loop."""

    async def leave() -> None:
        raise SystemExit(0)

    note(note_to, f"start {os.getpid()}")
    await asyncio.gather(asyncio.create_task(leave()), asyncio.sleep(60))


async def terminate_self(note_to: str) -> None:
    note(note_to, f"start {os.getpid()}")
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(5)


def make(url: str | None = None, **options: Any) -> App:
    app = App(url, synchronous="normal", **options)
    for function in (
        wait,
        wait_in_thread,
        wait_in_a_transaction,
        cancel_all,
        stop_loop,
        close_selector,
        leave_a_callback,
        exit_in_a_task,
        terminate_self,
    ):
        app.task(name=function.__name__, backoff=QUICK)(function)
    for function in (
        block,
        block_and_hold_the_log,
        block_in_a_transaction,
        block_in_a_task,
        block_in_a_callback,
        block_for_five_seconds,
    ):
        app.task(name=function.__name__, backoff=QUICK, timeout=0.3, timeout_grace=0.3)(function)
    app.task(name="block_in_parts", timeout=3, timeout_grace=2)(block_in_parts)
    app.task(name="block_once_given_up", timeout=0.3, timeout_grace=0.3, max_attempts=1)(block_once_given_up)
    app.task(name="wait_two_seconds", timeout=2, timeout_grace=0.5)(wait)
    app.task(name="block_without_timeout", backoff=QUICK, timeout=None)(block)
    app.task(name="wait_in_process", run_in="process", backoff=QUICK)(wait_in_thread)
    app.task(run_in="process", name="return_much_from_a_process")(return_much_from_a_process)
    return app


app = make(lease=float(os.environ.get("HOSTILE_LEASE", "30")))


def start(fleet: Fleet, *, lease: float = 30, **options: Any) -> Process:
    """A worker of this app that has registered."""
    return fleet.start(env={"SERVE": "tests.worker.hostile", "HOSTILE_LEASE": str(lease)}, **options)


def begin(app: App, task: str, notes: Path, **arguments: Any) -> Job[Any]:
    """A job whose handler has begun."""
    job = app.tasks[task].enqueue(note_to=str(notes), **arguments)
    until(notes.exists)
    return job


def row_of(job: Job[Any]) -> JobRow:
    row = job.refresh().row
    assert row is not None
    return row
