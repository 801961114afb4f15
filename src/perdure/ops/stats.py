"""Statistics for operators, with the database's time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from perdure.model.coverage import Unserved, unserved
from perdure.model.job import Instant, Span
from perdure.model.latency import Ended, Latency, latency
from perdure.ops.latency import sample
from perdure.ops.op import Op, Query, ask_all, operation
from perdure.ops.queues import Queue, read_queue
from perdure.ops.worker import WorkerRow
from perdure.ops.workers_read import live, servers


class QueueNumbers(NamedTuple):
    counts: dict[str, int]
    oldest_ready: Instant | None
    settings: Queue | None


class Recent(NamedTuple):
    """Latency of jobs that ended recently. ``looked_at``: how many jobs were read.

    ``whole``: whether all jobs that ended after ``since`` were found.
    """

    since: Instant
    looked_at: int
    whole: bool
    queues: dict[str, Latency]
    tasks: dict[str, Latency]


class Numbers(NamedTuple):
    """All statistics of a database. A number is None if this kind of database does not have it."""

    now: Instant
    queues: dict[str, QueueNumbers]
    workers: list[WorkerRow]
    unserved: list[Unserved]
    version: str
    bytes: int
    dead_rows: int | None
    oldest_snapshot: Span | None
    recent: Recent | None = None


@operation("read")
def measure(*, since: Span | None = None, after: Instant | None = None) -> Op[Numbers]:
    """Read the statistics. ``since`` (a duration) or ``after`` (a time): also read the jobs that ended since then."""
    clock, counted, ready, settings, workers, facts = yield from ask_all(
        Query("read_clock", {}),
        Query("count_jobs", {"queue": None, "tenant": None}),
        Query("list_ready", {}),
        Query("list_queues", {}),
        Query("list_workers", {}),
        Query("describe_database", {}),
        final=since is None and after is None,
    )
    ((now,),) = clock
    queues = {queue.name: queue for queue in (read_queue(row, now) for row in settings)}
    counts: dict[str, dict[str, int]] = {name: {} for name in queues}
    for name, state, number in counted:
        counts.setdefault(name, {})[state] = number
    oldest: dict[str, Instant] = {}
    for name, _, _, first in ready:
        oldest[name] = min(first, oldest.get(name, first))
    live_workers = live(workers, now)
    start = now - since if since is not None else after
    recent = None if start is None else (yield from _look_back(now, start, oldest))
    return Numbers(
        now,
        {
            name: QueueNumbers(
                counts[name],
                oldest.get(name),
                settings=queues.get(name),
            )
            for name in sorted(counts)
        },
        live_workers,
        unserved(((queue, task, n) for queue, task, n, _ in ready), servers(live_workers)),
        *facts[0],
    )._replace(recent=recent)


def _look_back(now: Instant, start: Instant, oldest: Mapping[str, Instant]) -> Op[Recent]:
    found = yield from sample(start, sorted(oldest, key=lambda queue: oldest[queue]))
    # A sample covers only the time since its first job ended.
    reach = start if found.whole else min((job.finished_at for job in found.jobs), default=start)
    by_queue: dict[str, list[Ended]] = {}
    by_task: dict[str, list[Ended]] = {}
    for job in found.jobs:
        by_queue.setdefault(job.queue, []).append(job)
        by_task.setdefault(job.task, []).append(job)
    return Recent(
        start,
        found.looked_at,
        found.whole,
        {name: latency(by_queue[name], now - reach) for name in sorted(by_queue)},
        {name: latency(by_task[name], now - reach) for name in sorted(by_task)},
    )
