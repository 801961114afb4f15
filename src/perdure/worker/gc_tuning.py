"""Runs garbage collection by time instead of by allocations, in a worker that owns its process.

With Python's threshold of 700 objects, the jobs of one cycle are scanned several times while they run. This takes an
eighth of a busy worker's time.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

USUAL = (700, 2_000)
"""The defaults of different versions of Python. Any other threshold was set on purpose and stays unchanged."""

MOST = 20_000
"""A collection also runs after this many allocations, if the timer has not run one before."""

PAUSE = 1.0
"""Seconds between two collections of young objects. A timer is needed, as even a few objects may hold much memory."""

THOROUGH = 60
"""One in this many collections is full."""


@contextmanager
def collect_by_time(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Collect by time inside this block, and never scan the objects that exist at its start.

    Scanning these objects again and again would take a fifth of a busy worker's time. Collection by time needs a usual
    threshold and the main thread. Otherwise, Python's own collection continues.
    """
    gc.freeze()
    try:
        before = gc.get_threshold()
        if before[0] not in USUAL or threading.current_thread() is not threading.main_thread():
            yield
            return
        collector = _Collector(loop)
        gc.set_threshold(MOST, *before[1:])
        try:
            yield
        finally:
            collector.stop()
            gc.set_threshold(*before)
    finally:
        gc.unfreeze()


class _Collector:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._looks = 0
        self._next = loop.call_later(PAUSE, self._look)

    def stop(self) -> None:
        self._next.cancel()

    def _look(self) -> None:
        self._looks += 1
        if gc.isenabled():
            gc.collect(1 if self._looks % THOROUGH else 2)
        self._next = self._loop.call_later(PAUSE, self._look)
