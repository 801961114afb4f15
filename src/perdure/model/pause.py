"""The pause of a queue: when it began, who paused the queue, and why."""

from __future__ import annotations

from typing import NamedTuple

from perdure.model.job import Instant
from perdure.model.time_text import stamp


class Pause(NamedTuple):
    """The pause of a queue. ``at`` is None if the pause began before the database recorded such times."""

    at: Instant | None
    by: str | None
    reason: str | None

    def __str__(self) -> str:
        by = f" by {self.by}" if self.by else ""
        since = f" since {stamp(self.at)}" if self.at is not None else ""
        return f"paused{by}{since}" + (f": {self.reason}" if self.reason else "")
