"""The state of a database at a glance, as ``app.stats()`` tells it."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from perdure.client.queues import QueuePause, show_pause
from perdure.model.coverage import Unserved
from perdure.model.job import SECOND, Instant
from perdure.model.latency import Latency
from perdure.ops.stats import Numbers, QueueNumbers, Recent
from perdure.ops.worker import WorkerRow
from perdure.request.times import from_us
from perdure.store.statements import Dialect
from perdure.store.store import Facts


class QueueStats(NamedTuple):
    """``counts`` is by the state that people see, see docs/states.md; ``lag`` is in seconds.

    ``held``: how many jobs no worker can claim, also in ``counts``.
    """

    counts: dict[str, int]
    lag: float
    oldest_ready: datetime | None
    paused: bool
    cool_until: datetime | None
    held: int
    pause: QueuePause | None


class DatabaseStats(NamedTuple):
    """None is what this kind of database does not know, or does not tell this user. Snapshots are in seconds."""

    dialect: Dialect
    version: str
    bytes: int
    wal_bytes: int | None
    dead_rows: int | None
    oldest_snapshot: float | None


class RecentStats(NamedTuple):
    """What has ended ``since`` then. ``looked_at``: so many jobs were; ``whole``: those are all there are."""

    since: datetime
    looked_at: int
    whole: bool
    queues: dict[str, Latency]
    tasks: dict[str, Latency]


class Stats(NamedTuple):
    """``workers`` are the live ones; ``unserved`` is what none of them would ever claim.

    ``recent`` is None where nobody asked.
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
    oldest, cool = queue.oldest_ready, queue.cool_until
    return QueueStats(
        queue.counts,
        0.0 if oldest is None else (now - oldest) / SECOND,
        None if oldest is None else from_us(oldest),
        queue.paused,
        from_us(cool) if cool is not None and cool > now else None,
        queue.counts.get("held", 0),
        show_pause(queue.pause),
    )
