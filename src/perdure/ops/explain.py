"""Read all data that decides whether a job is claimed, and the database's time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perdure.model.explain import Case, Parent
from perdure.model.job import ENDED, Instant, JobRow
from perdure.model.limit_use import Holding, RunningJob, full_limits
from perdure.model.silence import Silence
from perdure.ops.limits import read_limits
from perdure.ops.op import Op, Param, Query, ask_all, operation
from perdure.ops.queues import read_queue
from perdure.ops.worker import WorkerRow
from perdure.ops.workers_read import live, servers


@operation("read")
def examine(id: str) -> Op[Case | None]:
    clock, jobs, queues, workers, running, runners = yield from ask_all(
        Query("read_clock", {}),
        Query("get_job", {"id": id}),
        Query("list_queues", {}),
        Query("list_workers", {}),
        Query("count_running", {}),
        Query("list_workers_of_job", {"id": id}),
    )
    if not jobs:
        return None
    ((now,),) = clock
    job = JobRow(*jobs[0])
    live_workers = live(workers, now)
    queue = next((read_queue(row, now) for row in queues if row[0] == job.queue), None)
    return Case(
        now,
        job,
        paused=queue is not None and queue.paused,
        pause=None if queue is None else queue.pause,
        cool_until=None if queue is None else queue.cool_until,
        servers=servers(live_workers, dict(running)),
        runner=next((worker.name for worker in live_workers if worker.id == job.worker), None),
        **_silences(job, [WorkerRow(*row) for row in runners], now)._asdict(),
        **(yield from _look_around(job, now))._asdict(),
    )


class Silences(NamedTuple):
    silent: Silence | None
    taken_over: Silence | None


def _silences(job: JobRow, runners: Sequence[WorkerRow], now: Instant) -> Silences:
    """The silence of the worker that runs the job, and of the worker from which its last attempt was taken over."""
    silent = next((worker.silence(now) for worker in runners if worker.id == job.worker), None)
    died = [worker.silence(now) for worker in runners if worker.retired_at and worker.id != job.worker]
    last = max(filter(None, died), key=lambda silence: silence.until, default=None)
    return Silences(silent, last if job.error_kind == "lost" else None)


class Around(NamedTuple):
    """Other rows that explain a job's current state. ``ahead``: how many jobs come before the job.

    ``full``: its limits without a free slot. ``parents``: its parents that have not ended. ``holder``: the active job
    with the same unique key.
    """

    enabled: bool | None
    ahead: int = 0
    full: Sequence[Holding] = ()
    parents: Sequence[Parent] = ()
    holder: str | None = None


def _look_around(job: JobRow, now: Instant) -> Op[Around]:
    task = Query("find_enabled", {"task": job.task})
    place: dict[str, Param] = {"queue": job.queue, "priority": job.priority, "run_at": job.run_at}
    scope: dict[str, Param] = {"task": job.task, "tenant": job.tenant or "", "unique_key": job.unique_key}
    if job.state == "ready" and job.run_at <= now:
        known, rows, running = yield from ask_all(
            task, Query("count_ahead", {"id": job.id, **place}), Query("list_running_jobs", {})
        )
        limits = yield from read_limits()
        full = full_limits(
            limits, job.queue, job.task, job.concurrency_key, [RunningJob(*row) for row in running]
        )
        return Around(_enabled(known), ahead=rows[0][0], full=[*full])
    if job.state == "waiting":
        known, rows = yield from ask_all(task, Query("list_parents", {"id": job.id}), final=True)
        return Around(_enabled(known), parents=[Parent(*row) for row in rows if row[-1] not in ENDED])
    if job.state in ("failed", "canceled") and job.unique_key is not None:
        known, rows = yield from ask_all(task, Query("find_active", scope), final=True)
        return Around(_enabled(known), holder=next((row[0] for row in rows), None))
    (known,) = yield from ask_all(task, final=True)
    return Around(_enabled(known))


def _enabled(known: Sequence[Sequence[bool]]) -> bool | None:
    """Whether the task is enabled; None if the database does not know the task."""
    return bool(known[0][0]) if known else None
