"""The result of ``app.stats()``."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from perdure.client.queues import QueuePause, QueueSettings, show_queue
from perdure.model.coverage import Unserved
from perdure.model.job import SECOND, Instant
from perdure.model.latency import Latency
from perdure.ops.stats import Numbers, QueueNumbers, Recent
from perdure.ops.worker import WorkerRow
from perdure.request.times import from_us
from perdure.store.statements import Dialect
from perdure.store.store import Facts


class QueueStats(NamedTuple):
    """Statistics of a queue. ``counts``: jobs by visible state, see docs/states.md.

    ``oldest_ready``: when the oldest ready job became due; ``lag``: the seconds since then. ``held``: the number of
    jobs that no worker can claim until somebody acts, as in ``counts``. ``settings`` is None if the queue has no live
    settings.
    """

    counts: dict[str, int]
    lag: float
    oldest_ready: datetime | None
    paused: bool
    cool_until: datetime | None
    held: int
    pause: QueuePause | None
    settings: QueueSettings | None


IDLE = QueueStats({}, 0.0, None, False, None, 0, None, None)
"""The statistics of a queue without jobs and settings."""


class DatabaseStats(NamedTuple):
    """Statistics of the database. A value is None if the database does not have it, or hides it from this user.

    ``oldest_snapshot``: the age, in seconds, of the oldest transaction that still has a snapshot.
    """

    dialect: Dialect
    version: str
    bytes: int
    wal_bytes: int | None
    dead_rows: int | None
    oldest_snapshot: float | None


class RecentStats(NamedTuple):
    """The latency of jobs that ended after ``since``.

    ``looked_at``: how many jobs were read; ``whole``: whether they include all jobs that ended after ``since``.
    """

    since: datetime
    looked_at: int
    whole: bool
    queues: dict[str, Latency]
    tasks: dict[str, Latency]


class Stats(NamedTuple):
    """Statistics of an app's queues, workers and database.

    ``workers``: the live workers. ``unserved``: ready jobs that no live worker can claim. ``recent`` is None after
    ``app.stats(since=None)``.
    """

    at: datetime
    database: DatabaseStats
    connections: Facts
    queues: dict[str, QueueStats]
    workers: list[WorkerRow]
    unserved: list[Unserved]
    recent: RecentStats | None


def show(numbers: Numbers, facts: Facts, dialect: Dialect) -> Stats:
    snapshot = numbers.oldest_snapshot
    return Stats(
        from_us(numbers.now),
        DatabaseStats(
            dialect,
            numbers.version,
            numbers.bytes,
            facts.wal_bytes,
            numbers.dead_rows,
            None if snapshot is None else snapshot / SECOND,
        ),
        facts,
        {name: _queue(queue, numbers.now) for name, queue in numbers.queues.items()},
        numbers.workers,
        numbers.unserved,
        None if numbers.recent is None else _recent(numbers.recent),
    )


def _recent(recent: Recent) -> RecentStats:
    return RecentStats(from_us(recent.since), *recent[1:])


def _queue(queue: QueueNumbers, now: Instant) -> QueueStats:
    oldest, settings = queue.oldest_ready, queue.settings
    cool = None if settings is None else settings.cool_until
    shown = None if settings is None else show_queue(settings)
    return QueueStats(
        queue.counts,
        0.0 if oldest is None else (now - oldest) / SECOND,
        None if oldest is None else from_us(oldest),
        shown is not None and shown.paused,
        from_us(cool) if cool is not None and cool > now else None,
        queue.counts.get("held", 0),
        None if shown is None else shown.pause,
        shown,
    )
