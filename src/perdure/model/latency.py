"""Latency: how long the jobs of a sample waited and ran, as percentiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perdure.model.job import SECOND, Instant, Span, State


class Ended(NamedTuple):
    """The times of an ended job. The fields are in the order of the columns of the SQL statement ``list_newest``."""

    id: str
    queue: str
    task: str
    state: State
    run_at: Instant
    started_at: Instant | None
    finished_at: Instant


class Spread(NamedTuple):
    """Percentiles in seconds. Each is the time of an actual job (nearest rank)."""

    p50: float
    p95: float
    p99: float
    max: float


class Latency(NamedTuple):
    """How many jobs ended, how long they waited, and how long they ran.

    ``waited``: the time from when a job was due until its last attempt began. ``ran``: the duration of that attempt.
    Both are None if none of the jobs ever began. ``per_second``: how many jobs ended per second.
    """

    succeeded: int
    failed: int
    canceled: int
    per_second: float
    waited: Spread | None
    ran: Spread | None


def latency(jobs: Sequence[Ended], over: Span) -> Latency:
    """The latency of these jobs, which ended within a period of length ``over``."""
    states = [job.state for job in jobs]
    waited = [job.started_at - job.run_at for job in jobs if job.started_at is not None]
    ran = [job.finished_at - job.started_at for job in jobs if job.started_at is not None]
    return Latency(
        states.count("succeeded"),
        states.count("failed"),
        states.count("canceled"),
        len(jobs) * SECOND / max(over, 1),
        spread(waited),
        spread(ran),
    )


def spread(times: Sequence[Span]) -> Spread | None:
    if not times:
        return None
    # A clock that was set back must not make a time negative.
    ordered = sorted(max(time, 0) for time in times)

    def rank(percent: int) -> float:
        return ordered[-(-len(ordered) * percent // 100) - 1] / SECOND

    return Spread(rank(50), rank(95), rank(99), ordered[-1] / SECOND)
