"""Cool the queues whose jobs have hit a limit of another system, and end such cool-downs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from perdure.model.cool_down import cool_down
from perdure.model.job import Instant, Lease, Span
from perdure.model.lifecycle import Outcome, Running, Throttled
from perdure.ops.audit import act
from perdure.ops.batch import rows_of
from perdure.ops.op import Op, Query, ask_all, operation
from perdure.ops.running import read_policy
from perdure.ops.topics import queue_topics


class Cooled(NamedTuple):
    """The statements that cool queues, and how long each queue cools."""

    writes: Sequence[Query] = ()
    queues: Mapping[str, Span] = {}


def cool(jobs: Sequence[Running], outcomes: Mapping[Lease, Outcome]) -> Op[Cooled]:
    """Lock the queues of throttled jobs, and decide how long each queue cools."""
    asked: dict[str, list[Span | None]] = {}
    for job in jobs:
        outcome = outcomes[job.lease]
        if isinstance(outcome, Throttled) and outcome.cool_queue:
            asked.setdefault(job.queue, []).append(outcome.delay)
    if not asked:
        return Cooled()
    names = rows_of(sorted(asked))
    _, rows = yield from ask_all(
        Query("ensure_queues", {"names": names}), Query("lock_queues", {"names": names})
    )
    writes, queues = [], {}
    for name, throttles, cool_until, now, backoff in rows:
        left = _left(cool_until, now)
        policy = None if backoff is None else read_policy(backoff)
        exponent, length = cool_down(throttles, left=left, asked=asked[name], backoff=policy)
        queues[name] = length
        if length != left:
            writes.append(Query("cool_queue", {"name": name, "throttles": exponent, "cool": length}))
    return Cooled(writes, queues)


@operation("write")
def warm_queue(name: str, *, by: str | None = None) -> Op[bool]:
    """End a cool-down, and reset the exponent that makes cool-downs longer; return whether the queue was cooling."""
    (rows,) = yield from ask_all(Query("lock_queues", {"names": rows_of([name])}))
    if not any((_left(cool_until, now) or 0) > 0 for _, _, cool_until, now, _ in rows):
        return False
    done = act("warm_queue", f"queue {name}", by)
    yield from ask_all(Query("warm_queue", {"name": name}), done, final=True, wake=queue_topics([name]))
    return True


def _left(cool_until: Instant | None, now: Instant) -> Span | None:
    return None if cool_until is None else cool_until - now
