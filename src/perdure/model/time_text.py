"""Times and durations as text for people."""

from __future__ import annotations

from datetime import UTC, datetime

# Not imported from job.py: job.py imports msgspec, which would delay the help of the command line.
_SECOND = 1_000_000

FIRST, LAST = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The limits of a datetime. A row with a time beyond them, written by hand, must stay readable."""


def stamp(at: int) -> str:
    """Microseconds since the epoch as ``2026-03-01 12:00:05 UTC``."""
    return f"{datetime.fromtimestamp(bounded(at) // _SECOND, UTC):%Y-%m-%d %H:%M:%S} UTC"


def bounded(at: int) -> int:
    return min(max(at, FIRST), LAST)


def distance(at: int, now: int) -> str:
    """The time from ``now`` to ``at`` as text: ``in 2 h`` or ``5 min ago``."""
    far = length(abs(at - now) / _SECOND)
    return f"in {far}" if at > now else f"{far} ago"


def length(seconds: float) -> str:
    """Seconds as text, in the largest unit of which there are at least two."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 1 or seconds == 0 else f"{seconds * 1000:.0f} ms"
