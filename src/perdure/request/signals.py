"""How a handler ends other than by returning or failing. Signals are not errors and do not share their root."""

from __future__ import annotations

from datetime import timedelta
from typing import TypeAlias

from perdure.request.times import duration_us


class Signal(Exception):
    """Raised by a handler to say how its attempt ends."""


class Retry(Signal):
    """A failed attempt, to be tried again; ``delay`` is a lower bound."""

    def __init__(
        self, message: str = "", *, delay: float | timedelta | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.delay = None if delay is None else duration_us("delay", delay)
        self.code = code


class Snooze(Signal):
    """Later; costs no attempt."""

    def __init__(self, delay: float | timedelta) -> None:
        super().__init__()
        self.delay = duration_us("delay", delay)


class Throttle(Signal):
    """A limit outside was hit: later, at no cost, and the whole queue cools."""

    def __init__(self, delay: float | timedelta | None = None, cool_queue: bool = True) -> None:
        super().__init__()
        self.delay = None if delay is None else duration_us("delay", delay)
        self.cool_queue = cool_queue


class Fatal(Signal):
    """Failed at once, whatever attempts are left."""

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class Cancel(Signal):
    """The job gives up on purpose."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Continue(Signal):
    """The attempt counts as success and a new run begins, with the checkpoint kept."""

    def __init__(self, delay: float | timedelta = 0) -> None:
        super().__init__()
        self.delay = duration_us("delay", delay)


OutcomeSignal: TypeAlias = Retry | Snooze | Throttle | Fatal | Cancel | Continue
"""Every signal that stands for an outcome."""


class Stopped(BaseException):
    """The handler was asked to stop, and does. How that counts is known to whoever asked.

    Raised by ``ctx.check()``, and in a plain handler of a process where it stands. Not an ``Exception``, like
    ``asyncio.CancelledError``: handlers catch those to go on.
    """
