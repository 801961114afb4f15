"""Waiting for a condition, never for a number of seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


def until(condition: Callable[[], object], *, seconds: float = 30.0) -> None:
    """Return as soon as the condition holds; fail if it never does."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("the condition never held")
        time.sleep(0.005)


async def auntil(condition: Callable[[], object], *, seconds: float = 30.0) -> None:
    """The same, while the event loop runs on."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is awaited is in the database
            await asyncio.sleep(0.005)
