"""Set aside jobs that are due much later: take them out of the index that claims read.

A claim looks at each queue and priority that has ready jobs, due or not. 20,000 queues that had only scheduled jobs
made a claim a hundred times as slow. So if no job of a queue and priority is due soon, its jobs leave the claim's index
until shortly before they are due. Nothing is written if there are only a few such queues and priorities.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perdure.model.job import SECOND, Span
from perdure.ops.batch import rows_of
from perdure.ops.find import FIRST, Due
from perdure.ops.op import Op, Rows, announce, ask, ask_last, operation
from perdure.ops.topics import queue_topics

ASIDE: Span = 60 * SECOND
"""A job that is due later than this may be set aside."""

BACK: Span = 30 * SECOND
"""A job is brought back this long before it is due.

This is long enough: if the elected worker dies, another worker takes over within 5 s.
"""

FEW = 50
"""Nothing is set aside unless there are more than this many pairs of queue and priority without a job that is due soon.
Each such pair costs a claim only about 10 µs."""


QUEUES = 2000
"""How many queues are looked at in one transaction."""


class SetAside(NamedTuple):
    """How many jobs were set aside, and the last queue that was looked at: None once all queues were looked at."""

    n: int
    last: str | None


@operation("write", retries=1)
def set_aside(*, after: str = "", n: int = 5000, few: int = FEW) -> Op[SetAside]:
    """Set aside up to n jobs of the next queues after ``after``: the jobs of priorities in which no job is due soon."""
    queues = [queue for (queue,) in (yield from ask("list_ready_queues", after=after, n=QUEUES))]
    if not queues:
        return SetAside(0, None)
    rows = yield from ask_last("set_aside", queues=rows_of(queues), ahead=ASIDE, few=few, n=n)
    return SetAside(len(rows), last_of(queues))


@operation("read")
def list_ready_queues(*, after: str = "") -> Op[list[str]]:
    """The next queues after ``after`` that ``set_aside`` looks at."""
    return [queue for (queue,) in (yield from ask_last("list_ready_queues", after=after, n=QUEUES))]


@operation("write", retries=0)
def set_aside_in(queues: Sequence[str], *, n: int = 5000) -> Op[Rows]:
    """Like ``set_aside``, but for these queues, and with ``few=0``. Return a row for each job."""
    return (yield from ask_last("set_aside", queues=rows_of(queues), ahead=ASIDE, few=0, n=n))


def last_of(queues: Sequence[str]) -> str | None:
    """The queue behind which the next page begins; None after the last page."""
    return queues[-1] if len(queues) == QUEUES else None


@operation("read")
def find_due_soon(*, behind: Due = FIRST, n: int = 1000) -> Op[list[Due]]:
    """The next n jobs, after ``behind``, that were set aside and are due soon."""
    rows = yield from ask_last("find_due_soon", due=behind.at, after=behind.id, ahead=BACK, n=n)
    return [Due(*row) for row in rows]


@operation("write", retries=0)
def bring_back(ids: Sequence[str]) -> Op[list[str]]:
    """Bring these jobs back; return their queues. A queue in which such a job is already due is announced."""
    rows = yield from ask_last("bring_back", ids=rows_of(ids))
    yield from announce(queue_topics(queue for queue, is_due in rows if is_due))
    return sorted(queue for queue, _ in rows)
