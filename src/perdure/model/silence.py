"""Silent workers: workers that do not renew their lease in time."""

from __future__ import annotations

from typing import NamedTuple

from perdure.model.job import Instant, Span


class Silence(NamedTuple):
    """A worker, by name, and since when it has been silent. ``until``: when its jobs will be or were taken over."""

    worker: str
    since: Instant
    until: Instant


def is_silent(*, beat_at: Instant, lease: Span, expires_at: Instant, now: Instant) -> bool:
    """Whether a worker has missed a heartbeat. Heartbeats come three times per lease."""
    return expires_at <= now or now - beat_at > lease // 2
