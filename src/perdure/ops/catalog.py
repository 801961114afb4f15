"""The catalog of tasks: their settings, the workers that serve them, and their jobs."""

from __future__ import annotations

from typing import NamedTuple

from perdure.model.graph import GATE
from perdure.model.job import Instant, TaskDefinition
from perdure.ops.op import Op, Query, ask_all, operation
from perdure.ops.tasks import KnownTask, read_task
from perdure.ops.workers_read import live, servers


class StoredTask(NamedTuple):
    """A task as the database stores it."""

    known: KnownTask
    config: str | None
    synced_at: Instant

    @property
    def definition(self) -> TaskDefinition:
        return self.known.definition


class CatalogTask(NamedTuple):
    """A task of the catalog. ``stored`` is None if only jobs name the task."""

    stored: StoredTask | None
    served_by: list[str]
    counts: dict[str, int]


@operation("read")
def list_catalog() -> Op[dict[str, CatalogTask]]:
    """Every task that was ever synced, and every other task of a ready job, a running job or one of the newest jobs.

    Reading all jobs would cost too much. Therefore a task is missing if it was deleted by hand and only older jobs name
    it.
    """
    clock, stored, counted, named, workers = yield from ask_all(
        Query("read_clock", {}),
        Query("describe_tasks", {}),
        Query("count_by_task", {}),
        Query("list_newest_tasks", {}),
        Query("list_workers", {}),
        final=True,
    )
    ((now,),) = clock
    tasks = {row[0]: StoredTask(read_task(*row[:-2]), *row[-2:]) for row in stored}
    counts: dict[str, dict[str, int]] = {}
    for name, state, number in counted:
        counts.setdefault(name, {})[state] = number
    live_workers = live(workers, now)
    serving = [*zip(live_workers, servers(live_workers), strict=True)]
    names = tasks.keys() | counts.keys() | {name for (name,) in named if name != GATE}
    return {
        name: CatalogTask(
            tasks.get(name),
            [worker.name for worker, server in serving if name in server.tasks],
            counts.get(name, {}),
        )
        for name in sorted(names)
    }
