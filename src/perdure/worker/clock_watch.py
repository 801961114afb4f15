"""Whether the host's clock can be trusted with leases."""

from __future__ import annotations

import time
from collections.abc import Callable

from perdure.model.job import Instant

TOLERANCE = 1_000_000
"""Microseconds by which the wall clock may drift between two looks: less than any sensible lease."""


class ClockWatch:
    """Notices that the wall clock was set, or that the machine slept: then leases look older than they are.

    The monotonic clock does neither, so the distance between the two changes only then.
    """

    def __init__(
        self, wall: Callable[[], int] = time.time_ns, steady: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._wall = wall
        self._steady = steady
        self._distance = wall() - steady()
        self._since: Instant | None = None

    def steady_since(self) -> Instant | None:
        """When the clock was last seen to have jumped; None if it never was."""
        wall = self._wall()
        distance = wall - self._steady()
        if abs(distance - self._distance) > TOLERANCE * 1000:
            self._since = wall // 1000
        self._distance = distance
        return self._since
