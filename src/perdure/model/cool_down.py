"""How long a queue cools down after its jobs have hit an external limit."""

from __future__ import annotations

from collections.abc import Collection

from perdure.model.backoff import DEFAULT_BACKOFF, MAX_DELAY, Backoff
from perdure.model.job import SECOND, Span

QUIET: Span = 120 * SECOND
"""If no job was throttled for this long after a cool-down ended, the exponent starts from zero again."""

LONGEST: Span = 900 * SECOND
"""The longest cool-down that the exponent gives. A delay from a handler may be longer."""

MOST_DOUBLED = 30
"""The highest exponent."""


def cool_down(
    throttles: int, *, left: Span | None, asked: Collection[Span | None], backoff: Backoff | None
) -> tuple[int, Span]:
    """The queue's next exponent, and how long the queue cools down from now on.

    ``left``: how long its last cool-down still lasts, negative if it has ended. ``asked``: the delays of the jobs that
    were throttled, None for each job without a delay.

    A delay is used as it is and does not change the exponent. Jobs without a delay raise the exponent by one. They do
    not raise it if the queue is already cooling down, because they then hit a limit that is already known. If several
    cool-downs result, the longest is used.
    """
    remaining = max(left or 0, 0)
    if left is None or left <= -QUIET:
        throttles = 0
    lengths = [min(delay, MAX_DELAY) for delay in asked if delay is not None]
    if None in asked and not remaining:
        throttles = min(throttles + 1, MOST_DOUBLED)
        lengths.append(min((backoff or DEFAULT_BACKOFF).ceiling(throttles), LONGEST))
    return throttles, max(remaining, *lengths, 0)
