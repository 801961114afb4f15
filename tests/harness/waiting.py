"""Waiting for a condition, never for a number of seconds."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable

NEVER = 60.0
"""The timeout in seconds: long, because only a failing test waits that long."""


def until(condition: Callable[[], object], *, seconds: float = NEVER) -> None:
    """Return as soon as the condition holds; fail if it never does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.002)


async def auntil(condition: Callable[[], object | Awaitable[object]], *, seconds: float = NEVER) -> None:
    """The same without blocking the event loop. The condition may be a coroutine function."""
    async with asyncio.timeout(seconds):
        while not await _value(condition()):  # noqa: ASYNC110 - what is awaited is elsewhere
            await asyncio.sleep(0.002)


async def _value(value: object) -> object:
    return await value if inspect.isawaitable(value) else value
