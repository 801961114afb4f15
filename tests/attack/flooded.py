"""An app whose tasks flood their worker; a worker's process serves it as ``tests.attack.flooded``."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from perdure import CONTEXT, App, Context
from tests.worker import fan

FLOOD = "flood"
"""The queue of the flooding jobs. Ordinary jobs are in the default queue."""


async def innocent(n: int) -> int:
    return n


async def log_lines(n: int, size: int, *, ctx: Context = CONTEXT) -> int:
    for i in range(n):
        ctx.log("x" * size, level="info")
        if i % 1_000 == 0:
            await asyncio.sleep(0)
    return n


def report_progress(n: int, *, ctx: Context = CONTEXT) -> int:
    for i in range(n):
        ctx.progress(i, n, f"{i} of {n}")
        ctx.stage(f"stage {i}")
    return n


async def raise_large(size: int) -> None:
    raise RuntimeError("x" * size)


async def raise_chain(length: int) -> None:
    error = RuntimeError("the first")
    for i in range(length):
        after = RuntimeError(f"after {i}")
        after.__context__ = error
        error = after
    raise error


async def raise_groups(depth: int, width: int) -> None:
    error: Exception = ExceptionGroup("wide", [RuntimeError(f"{i} " * 100) for i in range(width)])
    for i in range(depth):
        error = ExceptionGroup(f"level {i}", [error])
    raise error


async def enqueue_children(n: int, *, ctx: Context = CONTEXT) -> int:
    tasks = served().tasks
    await ctx.aenqueue(*(tasks["innocent"].job(i) for i in range(n)))
    return n


async def wait_for_cancel() -> None:
    await asyncio.sleep(3600)


def served() -> App:
    from tests.attack import flooded

    return flooded.app


def make(url: str) -> App:
    made = App(url, synchronous="normal", lease=3)
    made.task(name="innocent")(innocent)
    flood: Any = {"queue": FLOOD, "max_attempts": 1}
    for function in (
        *(log_lines, report_progress, raise_large, raise_chain, raise_groups, enqueue_children),
        wait_for_cancel,
    ):
        made.task(name=function.__name__, **flood)(function)
    made.task(name="log_in_process", run_in="process", **flood)(log_lines)
    made.task(name="progress_in_process", run_in="process", **flood)(report_progress)
    fan.add_leaf(made)
    made.task(name="weigh", **flood)(fan.weigh)
    for i in range(int(os.environ.get("FLOOD_TASKS", "0"))):
        made.task(name=f"one-of-many-{i}", **flood)(innocent)
    return made


app = make(os.environ.get("PERDURE_URL", "sqlite:///unused.db"))
