"""A sample of jobs that ended recently. Its cost does not depend on the number of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perdure.model.graph import GATE
from perdure.model.job import Instant
from perdure.model.latency import Ended
from perdure.ops.find import LAST
from perdure.ops.op import Op, Query, Rows, ask_all

NEWEST = 10_000
"""How many of the newest jobs are read."""
BEHIND = 2_000
"""How many more jobs are read for each lagging queue: those enqueued just before the job that the queue runs next.

Jobs that ended recently in such a queue were enqueued long ago, so they may not be among the newest jobs.
"""
MOST_QUEUES = 10
"""For how many lagging queues these jobs are read: those with the longest lag."""


class Sample(NamedTuple):
    """A sample. ``looked_at``: how many jobs were read. ``whole``: whether these were all jobs of the database."""

    jobs: list[Ended]
    looked_at: int
    whole: bool


def sample(after: Instant, lagging: Sequence[str]) -> Op[Sample]:
    """Sample the jobs that ended after ``after``. ``lagging``: the queues with due jobs, the longest lag first.

    There is no index in the order in which jobs ended, because it would slow down the hot path.
    """
    newest, *fronts = yield from ask_all(
        Query("list_newest", {"before": LAST, "n": NEWEST}),
        *(Query("find_front", {"queue": queue}) for queue in lagging[:MOST_QUEUES]),
    )
    if len(newest) < NEWEST:
        return Sample(_ended(newest, after), len(newest), True)
    last = newest[-1][0]
    behind = yield from ask_all(
        *(
            Query("list_newest", {"before": id, "n": BEHIND})
            for rows in fronts
            for (id,) in rows
            if id < last
        ),
    )
    rows = [*{row[0]: row for part in (newest, *behind) for row in part}.values()]
    return Sample(_ended(rows, after), len(rows), False)


def _ended(rows: Rows, after: Instant) -> list[Ended]:
    """The jobs in these rows that ended after ``after``, without gates, which no worker runs."""
    jobs = [Ended(*row) for row in rows if row[-1] is not None and row[-1] >= after]
    return [job for job in jobs if job.task != GATE]
