"""Read everything that decides whether a job is claimed, as of one moment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perdure.model.explain import Case, Parent
from perdure.model.job import ENDED, Instant, JobRow
from perdure.ops.op import Op, Param, Query, ask_all, operation
from perdure.ops.queues import read_queue
from perdure.ops.workers_read import live, servers


@operation("read")
def examine(id: str) -> Op[Case | None]:
    clock, jobs, queues, workers, running = yield from ask_all(
        Query("read_clock", {}),
        Query("get_job", {"id": id}),
        Query("list_queues", {}),
        Query("list_workers", {}),
        Query("count_running", {}),
    )
    if not jobs:
        return None
    ((now,),) = clock
    job = JobRow(*jobs[0])
    live_workers = live(workers, now)
    queue = next((queue for queue in map(read_queue, queues) if queue.name == job.queue), None)
    return Case(
        now,
        job,
        paused=queue is not None and queue.paused,
        cool_until=None if queue is None else queue.cool_until,
        servers=servers(live_workers, dict(running)),
        runner=next((worker.name for worker in live_workers if worker.id == job.worker), None),
        **(yield from _look_around(job, now))._asdict(),
    )


class Around(NamedTuple):
    """What explains a job in its current state."""

    enabled: bool | None
    ahead: int = 0
    parents: Sequence[Parent] = ()
    holder: str | None = None


def _look_around(job: JobRow, now: Instant) -> Op[Around]:
    task = Query("find_enabled", {"task": job.task})
    place: dict[str, Param] = {"queue": job.queue, "priority": job.priority, "run_at": job.run_at}
    scope: dict[str, Param] = {"task": job.task, "tenant": job.tenant or "", "unique_key": job.unique_key}
    if job.state == "ready" and job.run_at <= now:
        known, rows = yield from ask_all(task, Query("count_ahead", {"id": job.id, **place}), final=True)
        return Around(_enabled(known), ahead=rows[0][0])
    if job.state == "waiting":
        known, rows = yield from ask_all(task, Query("list_parents", {"id": job.id}), final=True)
        return Around(_enabled(known), parents=[Parent(*row) for row in rows if row[-1] not in ENDED])
    if job.state in ("failed", "canceled") and job.unique_key is not None:
        known, rows = yield from ask_all(task, Query("find_active", scope), final=True)
        return Around(_enabled(known), holder=next((row[0] for row in rows), None))
    (known,) = yield from ask_all(task, final=True)
    return Around(_enabled(known))


def _enabled(known: Sequence[Sequence[bool]]) -> bool | None:
    """Whether the task is enabled; None if the database does not know it."""
    return bool(known[0][0]) if known else None
