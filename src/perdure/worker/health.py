"""Whether the database answers. Each change is logged once."""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable, Coroutine
from threading import Lock
from time import monotonic
from typing import Any, TypeVar

from perdure.errors import PerdureError, StoreAway, StoreClosed
from perdure.worker.database_errors import OUT_OF_SERVICE, safe_message

T = TypeVar("T")

LONGEST_PAUSE = 2.0

LOG_INTERVAL = 60.0
"""The least seconds between two log lines about the same error code.

This does not apply to a server that cannot be reached: each such outage is logged.
"""

_log = logging.getLogger("perdure.worker")


class Health:
    """Whether the database answers. All loops of a worker share this object, in whichever threads they run."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._code: str | None = None
        self._failures = 0
        self._logged = False
        self._logged_at: dict[str, float] = {}
        self._ever_failed = 0

    def ask(self) -> int:
        """Return the number of failures so far. Call this before a query, and pass the number to ``worked``."""
        return self._ever_failed

    def failed(self, error: Exception) -> float:
        """Note that the database did not answer. Return how many seconds to wait before the next try."""
        if isinstance(error, StoreClosed):
            raise error  # the program closed the store, so waiting is of no use
        with self._lock:
            self._failures += 1
            self._ever_failed += 1
            code = error.code if isinstance(error, PerdureError) else type(error).__name__
            away = isinstance(error, StoreAway) and not error.answered
            news = self._code != code and (away or self._is_due(code))
            self._code = code
            pause = min(0.05 * 2.0 ** min(self._failures, 10), LONGEST_PAUSE)
        if news and not (isinstance(error, StoreAway) and error.told):
            self._logged = True
            _log.warning("The database cannot serve: %s Trying again.", safe_message(error))
        return random.uniform(0.5, 1.0) * pause

    def _is_due(self, code: str) -> bool:
        """Whether to log an error with this code.

        If only one kind of call fails, failures and successes alternate, so each failure would look like a change.
        """
        now = monotonic()
        due = now - self._logged_at.get(code, -math.inf) > LOG_INTERVAL
        if due:
            self._logged_at[code] = now
        return due

    def worked(self, asked: int) -> None:
        """Note that the database answered. ``asked``: the number that ``ask`` returned before the query.

        The answer is ignored if another query has failed since then.
        """
        if self._code is None or asked != self._ever_failed:
            return
        with self._lock:
            logged, self._logged, self._code, self._failures = self._logged, False, None, 0
        if logged:
            _log.warning("The database serves again.")

    async def until_answered(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Repeat ``ask`` until the database answers."""
        while True:
            try:
                return await ask()
            except OUT_OF_SERVICE as error:
                await asyncio.sleep(self.failed(error))


async def unless_stopped(stop: asyncio.Event, waiting: Coroutine[Any, Any, None]) -> None:
    """Wait until the coroutine ends or ``stop`` is set. Cancel the coroutine if it has not ended."""
    answered = asyncio.create_task(waiting)
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((answered, stopped), return_when=asyncio.FIRST_COMPLETED)
        if answered.done():
            answered.result()
    finally:
        answered.cancel()
        stopped.cancel()
