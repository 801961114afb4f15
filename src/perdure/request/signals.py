"""Signals: exceptions that a handler raises to say how its attempt ends. They are not subclasses of PerdureError."""

from __future__ import annotations

from datetime import timedelta
from typing import TypeAlias

from perdure.request.times import duration_us


class Signal(Exception):
    """Raised by a handler to say how its attempt ends."""


class Retry(Signal):
    """The attempt failed and is to be retried, after ``delay`` or the task's backoff, whichever is longer."""

    def __init__(
        self, message: str = "", *, delay: float | timedelta | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.delay = None if delay is None else duration_us("delay", delay)
        self.code = code


class Snooze(Signal):
    """Run the job again later. This costs no attempt."""

    def __init__(self, delay: float | timedelta) -> None:
        super().__init__()
        self.delay = duration_us("delay", delay)


class Throttle(Signal):
    """The handler hit an external limit. The job runs again later. This costs no attempt.

    ``cool_queue``: whether the queue cools down.
    """

    def __init__(self, delay: float | timedelta | None = None, cool_queue: bool = True) -> None:
        super().__init__()
        self.delay = None if delay is None else duration_us("delay", delay)
        self.cool_queue = cool_queue


class Fatal(Signal):
    """The job fails at once, however many attempts are left."""

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class Cancel(Signal):
    """The handler gives up on purpose: the job is canceled."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Continue(Signal):
    """The attempt succeeded and a new run begins, which keeps the checkpoint."""

    def __init__(self, delay: float | timedelta = 0) -> None:
        super().__init__()
        self.delay = duration_us("delay", delay)


OutcomeSignal: TypeAlias = Retry | Snooze | Throttle | Fatal | Cancel | Continue
"""Every signal that stands for an outcome."""


class Stopped(BaseException):
    """Stops a handler that was asked to stop. The outcome of the attempt depends on the reason.

    ``ctx.check()`` raises this. In a child process it can be raised at any point of a synchronous handler. It
    is not an ``Exception``, like ``asyncio.CancelledError``, because handlers often catch every ``Exception``.
    """
