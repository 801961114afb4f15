"""Waiting for what only the database can tell."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from perdure.client.job import Job
from perdure.worker.worker import Worker


async def aside_until(condition: Callable[[], Awaitable[object]], *, seconds: float = 30.0) -> None:
    """Return as soon as the condition holds; fail if it never does."""
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110 - what is awaited is in the database
            await asyncio.sleep(0.01)


async def until_state(job: Job[Any], *states: str, seconds: float = 30.0) -> None:
    """Return as soon as the job is in one of these."""

    async def arrived() -> bool:
        return (await job.arefresh()).state in states

    await aside_until(arrived, seconds=seconds)


def free_slots(worker: Worker) -> int:
    """How many more jobs it would take, apart from those in processes."""
    return worker._slots.free
