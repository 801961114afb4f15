"""Detects jumps of the host's clock, after which leases look older than they are."""

from __future__ import annotations

import time
from collections.abc import Callable

from perdure.model.job import Instant

TOLERANCE = 1_000_000
"""Microseconds by which the wall clock may drift between two checks. This is less than any sensible lease."""


class ClockWatch:
    """Detects that the wall clock was set, or that the machine slept.

    The monotonic clock is never set, and stands still while the machine sleeps. So the distance between the two clocks
    changes only in these two cases.
    """

    def __init__(
        self, wall: Callable[[], int] = time.time_ns, steady: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._wall = wall
        self._steady = steady
        self._distance = wall() - steady()
        self._since: Instant | None = None

    def steady_since(self) -> Instant | None:
        """When a jump of the clock was last detected; None if there was no jump."""
        wall = self._wall()
        distance = wall - self._steady()
        if abs(distance - self._distance) > TOLERANCE * 1000:
            self._since = wall // 1000
        self._distance = distance
        return self._since
