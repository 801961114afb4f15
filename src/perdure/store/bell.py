"""A bell for one who waits, in a thread or in an event loop; anybody rings it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import Future


class Bell:
    """Rung from any thread. A ring that nobody waits for is heard by the next wait."""

    def __init__(self) -> None:
        self._rung = False
        self._wake: Callable[[], object] | None = None

    def ring(self) -> None:
        # In this order, and the other way round below: one of the two sees the other.
        self._rung = True
        if (wake := self._wake) is not None:
            # A closed loop refuses: nobody waits there any more.
            with suppress(RuntimeError):
                wake()

    def wait(self, seconds: float) -> None:
        """Until it rings, or so many seconds."""
        gate = threading.Event()
        self._wake = gate.set
        if not self._rung:
            gate.wait(seconds)
        self._wake, self._rung = None, False

    async def await_(self, seconds: float) -> None:
        """The same, while the event loop runs on. No thread waits for it."""
        import asyncio

        loop = asyncio.get_running_loop()
        rung = loop.create_future()
        self._wake = lambda: loop.call_soon_threadsafe(_answer, rung)
        if not self._rung:
            await asyncio.wait([rung], timeout=seconds)
        self._wake, self._rung = None, False


def _answer(rung: Future[None]) -> None:
    if not rung.done():
        rung.set_result(None)
