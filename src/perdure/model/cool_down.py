"""How long a queue cools down after one of its jobs hit an external limit."""

from __future__ import annotations

from perdure.model.backoff import DEFAULT_BACKOFF, MAX_DELAY, Backoff
from perdure.model.job import Span

QUIET: Span = 120_000_000
"""A throttle this long after the last cool-down resets the exponent."""

MOST_DOUBLED = 30
"""The highest exponent."""


def cool_down(
    throttles: int, *, cooling: bool, quiet: bool, asked: Span | None, backoff: Backoff | None
) -> tuple[int, Span] | None:
    """The queue's next exponent and cool-down; None if it cools already: other jobs hit the same limit.

    ``quiet``: the queue's last cool-down ended more than ``QUIET`` ago.
    """
    if cooling:
        return None
    exponent = 1 if quiet else min(throttles + 1, MOST_DOUBLED)
    return exponent, min(max((backoff or DEFAULT_BACKOFF).ceiling(exponent), asked or 0), MAX_DELAY)
