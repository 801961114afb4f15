"""What an operator wants to know at a glance, read at one moment."""

from __future__ import annotations

from typing import NamedTuple

from perdure.model.job import Instant, Span
from perdure.model.serving import Unserved, unserved
from perdure.ops.crew import live, servers
from perdure.ops.op import Op, Query, ask_all, operation
from perdure.ops.worker import WorkerRow


class QueueNumbers(NamedTuple):
    counts: dict[str, int]
    oldest_ready: Instant | None
    paused: bool
    cool_until: Instant | None


class Numbers(NamedTuple):
    """Everything the database can tell of itself; None is what this kind of database does not know."""

    now: Instant
    queues: dict[str, QueueNumbers]
    workers: list[WorkerRow]
    unserved: list[Unserved]
    version: str
    bytes: int
    dead_rows: int | None
    oldest_snapshot: Span | None


@operation("read")
def measure() -> Op[Numbers]:
    clock, counted, ready, settings, workers, facts = yield from ask_all(
        Query("read_clock", {}),
        Query("count_jobs", {"queue": None, "tenant": None}),
        Query("list_ready", {}),
        Query("list_queues", {}),
        Query("list_workers", {}),
        Query("describe_database", {}),
        final=True,
    )
    ((now,),) = clock
    counts: dict[str, dict[str, int]] = {name: {} for name, *_ in settings}
    for name, view, number in counted:
        counts.setdefault(name, {})[view] = number
    oldest: dict[str, Instant] = {}
    for name, _, _, since in ready:
        oldest[name] = min(since, oldest.get(name, since))
    live_settings = {name: (bool(paused), cool_until) for name, paused, cool_until, *_ in settings}
    crew = live(workers, now)
    return Numbers(
        now,
        {
            name: QueueNumbers(counts[name], oldest.get(name), *live_settings.get(name, (False, None)))
            for name in sorted(counts)
        },
        crew,
        unserved(((queue, task, n) for queue, task, n, _ in ready), servers(crew)),
        *facts[0],
    )
