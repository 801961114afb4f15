"""How long a queue cools down after its jobs hit an external limit."""

from __future__ import annotations

from collections.abc import Collection

from perdure.model.backoff import DEFAULT_BACKOFF, MAX_DELAY, Backoff
from perdure.model.job import SECOND, Span

QUIET: Span = 120 * SECOND
"""How long after the end of a cool-down the exponent starts anew, if no job was throttled since."""

LONGEST: Span = 900 * SECOND
"""The longest cool-down that follows from the exponent."""

MOST_DOUBLED = 30
"""The highest exponent."""


def cool_down(
    throttles: int, *, left: Span | None, asked: Collection[Span | None], backoff: Backoff | None
) -> tuple[int, Span]:
    """The queue's next exponent, and for how long it cools from now on.

    ``left``: how long its last cool-down still lasts, negative if that has ended. ``asked``: the delays of the jobs
    that were throttled, None for each job that gave none.

    A delay is taken as it is and leaves the exponent alone. Without a delay the exponent grows by one, unless the queue
    cools already: then its jobs have met the limit that is known. Of several cool-downs the one that ends last counts.
    """
    remaining = max(left or 0, 0)
    if left is None or left <= -QUIET:
        throttles = 0
    lengths = [min(delay, MAX_DELAY) for delay in asked if delay is not None]
    if None in asked and not remaining:
        throttles = min(throttles + 1, MOST_DOUBLED)
        lengths.append(min((backoff or DEFAULT_BACKOFF).ceiling(throttles), LONGEST))
    return throttles, max(remaining, *lengths, 0)
