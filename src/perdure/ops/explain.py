"""Everything that decides whether a job is claimed, read at one moment."""

from __future__ import annotations

from perdure.model.explain import Case
from perdure.model.job import JobRow
from perdure.ops.crew import live, servers
from perdure.ops.op import Op, Query, ask_all, operation


@operation("read")
def examine(id: str) -> Op[Case | None]:
    clock, jobs, ahead, queues, workers = yield from ask_all(
        Query("read_clock", {}),
        Query("get_job", {"id": id}),
        Query("count_ahead", {"id": id}),
        Query("list_queues", {}),
        Query("list_workers", {}),
        final=True,
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
        ahead=ahead[0][0],
    )
