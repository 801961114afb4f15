"""Whether the database answers: one line in the log for each change."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from threading import Lock
from typing import TypeVar

from perdure.errors import StoreAway, StoreClosed, Unavailable

T = TypeVar("T")

LONGEST_PAUSE = 2.0

_log = logging.getLogger("perdure.worker")


class Health:
    """Shared by every loop of a worker, in whichever thread it runs."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._code: str | None = None
        self._failures = 0

    def failed(self, error: Unavailable) -> float:
        """Note that the database did not answer; return how many seconds to wait before the next try."""
        if isinstance(error, StoreClosed):
            raise error  # by the program itself: it will not come back
        with self._lock:
            self._failures += 1
            news = self._code != error.code
            self._code = error.code
            pause = min(0.05 * 2.0 ** min(self._failures, 10), LONGEST_PAUSE)
        # Of a database that is away the store itself tells.
        if news and not isinstance(error, StoreAway):
            _log.warning("The database cannot serve: %s Trying again.", error)
        return random.uniform(0.5, 1.0) * pause

    def worked(self) -> None:
        if self._code is None:
            return
        with self._lock:
            code, self._code, self._failures = self._code, None, 0
        if code is not None and code != StoreAway.code:
            _log.warning("The database serves again.")

    async def until_answered(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask until the database answers."""
        while True:
            try:
                return await ask()
            except Unavailable as error:
                await asyncio.sleep(self.failed(error))
