"""Everything that decides whether a job is claimed, read at one moment."""

from __future__ import annotations

from perdure.model.explain import Case
from perdure.model.job import ENDED, JobRow
from perdure.ops.crew import live, servers
from perdure.ops.op import Op, Query, ask_all, ask_last, operation


@operation("read")
def examine(id: str) -> Op[Case | None]:
    clock, jobs, queues, workers = yield from ask_all(
        Query("read_clock", {}),
        Query("get_job", {"id": id}),
        Query("list_queues", {}),
        Query("list_workers", {}),
    )
    if not jobs:
        return None
    ((now,),) = clock
    job = JobRow(*jobs[0])
    crew = live(workers, now)
    paused, cool_until = next(((row[1], row[2]) for row in queues if row[0] == job.queue), (False, None))
    return Case(
        now,
        job,
        paused=bool(paused),
        cool_until=cool_until,
        servers=servers(crew),
        runner=next((worker.name for worker in crew if worker.id == job.worker), None),
        ahead=(yield from _ahead(job)) if job.state == "ready" and job.run_at <= now else 0,
        parents=(yield from _parents(job)) if job.state == "waiting" else (),
    )


def _parents(job: JobRow) -> Op[list[str]]:
    """Those that it waits for."""
    rows = yield from ask_last("list_parents", id=job.id)
    return [key for key, state, _ in rows if state not in ENDED]


def _ahead(job: JobRow) -> Op[int]:
    """How many of its queue would be claimed before it, up to MOST_AHEAD."""
    rows = yield from ask_last(
        "count_ahead", id=job.id, queue=job.queue, priority=job.priority, run_at=job.run_at
    )
    number: int = rows[0][0]
    return number
