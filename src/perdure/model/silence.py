"""Silent workers: those that do not renew their lease in time, and what becomes of their jobs."""

from __future__ import annotations

from typing import NamedTuple

from perdure.model.job import Instant, Span


class Silence(NamedTuple):
    """``worker``: its name. ``until``: when its jobs are taken over, or were."""

    worker: str
    since: Instant
    until: Instant


def is_silent(*, beat_at: Instant, lease: Span, expires_at: Instant, now: Instant) -> bool:
    """Whether a worker, which renews its lease three times per lease, has missed that."""
    return expires_at <= now or now - beat_at > lease // 2
