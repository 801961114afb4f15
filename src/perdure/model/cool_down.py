"""How long a queue cools after one of its jobs hit a limit outside."""

from __future__ import annotations

from perdure.model.backoff import DEFAULT_BACKOFF, MAX_DELAY, Backoff
from perdure.model.job import Span

QUIET: Span = 120_000_000
"""How long after a cool-down the next throttle starts the exponent anew."""

MOST_DOUBLED = 30
"""The highest exponent."""


def cool_down(
    throttles: int, *, cooling: bool, quiet: bool, asked: Span | None, backoff: Backoff | None
) -> tuple[int, Span] | None:
    """The queue's next exponent and cool-down, or None: it cools already, and siblings hit the same limit.

    ``quiet``: its last cool-down ended over ``QUIET`` ago, so the limiter counts as a new one.
    """
    if cooling:
        return None
    exponent = 1 if quiet else min(throttles + 1, MOST_DOUBLED)
    return exponent, min(max((backoff or DEFAULT_BACKOFF).ceiling(exponent), asked or 0), MAX_DELAY)
