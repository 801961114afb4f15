"""The tasks of the worker that is measured. Each app declares only those that a measurement needs."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

from perdure import App

BLOCKED = -1
"""The argument of a job that occupies its slot until the worker ends."""

OPTIONS: dict[str, dict[str, Any]] = {
    "free": {},
    "queue": {"queue": "narrow"},
    "task": {"concurrency": 500},
    "named": {"limits": ["shared"]},
    "keyed": {"concurrency": 3, "concurrency_key": "{n}"},
}


class Countdown:
    """Ends the worker, as an operator would, once so many handlers have begun.

    ``cpu``: the CPU seconds from the first of them to the last, by this function. So the worker's start, which costs as
    much as thousands of jobs, counts nowhere.
    """

    def __init__(self, n: int, cpu_seconds: Callable[[], float] = time.process_time) -> None:
        self._n = self._left = n
        self._cpu_seconds = cpu_seconds
        self._over = asyncio.Event()
        self.cpu = 0.0

    def count(self) -> None:
        if self._left == self._n:
            self.cpu = -self._cpu_seconds()
        self._left -= 1
        if self._left == 0:
            self.cpu += self._cpu_seconds()
            self._over.set()
            os.kill(os.getpid(), signal.SIGTERM)

    async def wait(self) -> None:
        await self._over.wait()


def build(tasks: Sequence[str], countdown: Countdown) -> App:
    """An app on $PERDURE_URL with these tasks and the limits that they are under."""
    app = App()
    if "named" in tasks:
        app.limit("shared", concurrency=500)
    if "queue" in tasks:
        app.queue("narrow", concurrency=500)

    async def handler(n: int) -> None:
        if n == BLOCKED:
            await countdown.wait()
        else:
            countdown.count()

    for name in tasks:
        app.task(name=name, **OPTIONS[name])(handler)
    return app
