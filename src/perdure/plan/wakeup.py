"""A wake-up for one waiter, in a thread or in an event loop, that any thread may set."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import Future


class Wakeup:
    """A flag that any thread may set. If nobody waits when it is set, the next wait returns at once."""

    def __init__(self) -> None:
        self._is_set = False
        self._wake: Callable[[], object] | None = None

    def set(self) -> None:
        # Set the flag, then look for a waiter. The waiter makes itself known, then looks at the flag. In this order,
        # either the waiter sees the flag, or we see the waiter.
        self._is_set = True
        if (wake := self._wake) is not None:
            # A closed loop raises RuntimeError, and nobody waits in it any more.
            with suppress(RuntimeError):
                wake()

    def wait(self, seconds: float) -> None:
        """Wait until the flag is set, for at most this many seconds."""
        gate = threading.Event()
        self._wake = gate.set
        if not self._is_set:
            gate.wait(seconds)
        self._wake, self._is_set = None, False

    async def await_(self, seconds: float) -> None:
        """Wait in the event loop, without a thread."""
        import asyncio

        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._wake = lambda: loop.call_soon_threadsafe(_answer, future)
        if not self._is_set:
            await asyncio.wait([future], timeout=seconds)
        self._wake, self._is_set = None, False


def _answer(future: Future[None]) -> None:
    if not future.done():
        future.set_result(None)
