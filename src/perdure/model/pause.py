"""The pause of a queue: since when, by whom, why, and until when."""

from __future__ import annotations

from typing import NamedTuple

from perdure.model.job import Instant
from perdure.model.time_text import stamp


class Pause(NamedTuple):
    """The pause of a queue. ``at`` is None if the pause began before the database recorded such times.

    ``resume_at``: when the pause ends by itself; None if somebody must end it.
    """

    at: Instant | None
    by: str | None
    reason: str | None
    resume_at: Instant | None = None

    def __str__(self) -> str:
        by = f" by {self.by}" if self.by else ""
        since = f" since {stamp(self.at)}" if self.at is not None else ""
        until = f" until {stamp(self.resume_at)}" if self.resume_at is not None else ""
        return f"paused{by}{since}{until}" + (f": {self.reason}" if self.reason else "")
