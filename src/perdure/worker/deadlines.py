"""Deadlines: an attempt is stopped at its timeout. An attempt that does not stop is given up."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from time import monotonic

from perdure.worker.attempt import Attempt

HORIZON = 2.0
"""A timer is set at most this many seconds before a deadline. Most jobs end before that and need no timer."""


class Deadlines:
    """The timers for the deadlines of one worker's attempts."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timers: dict[Attempt, asyncio.TimerHandle] = {}

    def begin(self, attempt: Attempt) -> None:
        if attempt.deadline is not None and attempt.deadline - monotonic() < HORIZON:
            self._set(attempt, attempt.deadline)

    def end(self, attempt: Attempt) -> None:
        if timer := self._timers.pop(attempt, None):
            timer.cancel()

    def look_ahead(self, attempts: Iterable[Attempt]) -> None:
        """Set timers for near deadlines. Must be called more often than every ``HORIZON`` seconds."""
        soon = monotonic() + HORIZON
        for attempt in attempts:
            due = attempt.deadline is not None and attempt.deadline < soon
            if due and not attempt.ended and attempt not in self._timers:
                self._set(attempt, attempt.deadline or 0.0)

    def _set(self, attempt: Attempt, deadline: float) -> None:
        self._timers[attempt] = self._loop.call_later(deadline - monotonic(), self._time_out, attempt)

    def _time_out(self, attempt: Attempt) -> None:
        attempt.stop("timeout")
        if not attempt.ended:
            grace = attempt.handler.timeout_grace
            self._timers[attempt] = self._loop.call_later(grace, self._give_up, attempt)

    def _give_up(self, attempt: Attempt) -> None:
        if not attempt.ended:
            attempt.runner.give_up(attempt)
