"""Read workers, and the database's time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from perdure.model.coverage import Server
from perdure.model.job import Instant
from perdure.model.json_text import shown_json
from perdure.ops.op import Op, Query, Rows, ask_all, operation
from perdure.ops.worker import WorkerRow

NOBODY: Mapping[str, int] = {}


class WorkersNow(NamedTuple):
    """Every worker that was not retired, and the database's time."""

    now: Instant
    workers: list[WorkerRow]


@operation("read")
def list_workers_now() -> Op[WorkersNow]:
    clock, workers = yield from ask_all(Query("read_clock", {}), Query("list_workers", {}), final=True)
    return WorkersNow(clock[0][0], [WorkerRow(*row) for row in workers])


def live(rows: Rows, now: Instant) -> list[WorkerRow]:
    """The workers whose lease has not expired.

    The rows may contain workers whose lease has expired, until a sweep retires them.
    """
    workers = [WorkerRow(*row) for row in rows]
    return [worker for worker in workers if worker.expires_at > now]


def servers(workers: Sequence[WorkerRow], running: Mapping[str, int] = NOBODY) -> list[Server]:
    """Describe workers by the tasks and queues that they serve.

    ``running``: how many jobs each worker runs, by worker id.
    """
    return [
        Server(
            frozenset(names_in(worker.tasks)),
            None if worker.queues is None else frozenset(names_in(worker.queues)),
            worker.slots,
            running.get(worker.id, 0),
        )
        for worker in workers
    ]


def names_in(text: str) -> list[str]:
    """Read a list of names. A damaged list counts as empty, so that other workers can still be shown."""
    names = shown_json(text)
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
