"""A worker's registration, heartbeat and retirement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from perdure.errors import InvalidLease, WorkerRetired
from perdure.model.job import Instant, Lease, Span
from perdure.model.silence import Silence, is_silent
from perdure.ops.batch import rows_of
from perdure.ops.op import Op, Query, Rows, ask_all, ask_last, operation


class Beat(NamedTuple):
    """A worker as the database sees it. A worker that is not ``live`` was retired and must register again.

    ``configs``: the configs that operators have set for tasks, as JSON by task name.
    """

    live: bool
    running: list[Lease]
    cancel_requested: list[Lease]
    configs: Mapping[str, str]


class WorkerRow(NamedTuple):
    id: str
    name: str
    lease: Span
    tasks: str
    queues: str | None
    slots: int
    started_at: Instant
    beat_at: Instant
    expires_at: Instant
    retired_at: Instant | None

    def silence(self, now: Instant) -> Silence | None:
        """The silence of a worker that has died or does not renew its lease in time; None for any other worker."""
        if self.retired_at is not None:
            # A worker that stopped in order was retired before its lease ended.
            died = self.expires_at <= self.retired_at
            return Silence(self.name, self.beat_at, self.retired_at) if died else None
        silent = is_silent(beat_at=self.beat_at, lease=self.lease, expires_at=self.expires_at, now=now)
        return Silence(self.name, self.beat_at, self.expires_at) if silent else None


@operation("write", priority="heartbeat")
def register(
    worker: str,
    *,
    name: str,
    lease: Span,
    tasks: Sequence[str] = (),
    queues: Sequence[str] | None = None,
    slots: int = 1,
) -> Op[Mapping[str, str]]:
    """Register a worker; return the configs of tasks. Its jobs are not taken away as long as it renews its lease.

    ``tasks``, ``queues`` and ``slots`` are stored for operators to read.
    """
    if lease <= 0:
        raise InvalidLease
    rows, configs = yield from ask_all(
        Query(
            "register_worker",
            {
                "worker": worker,
                "name": name,
                "lease": lease,
                "tasks": rows_of(tasks),
                "queues": None if queues is None else rows_of(queues),
                "slots": slots,
            },
        ),
        Query("list_configs", {}),
    )
    if not rows:
        raise WorkerRetired
    return dict(configs)


@operation("write", priority="heartbeat")
def heartbeat(worker: str) -> Op[Beat]:
    """Renew a worker's lease, and read which jobs the database believes it runs.

    The lease is one row, which covers all jobs of the worker.
    """
    alive, rows, configs = yield from ask_all(
        Query("beat_worker", {"worker": worker}),
        Query("list_running", {"worker": worker}),
        Query("list_configs", {}),
        final=True,
    )
    return _beat(alive, rows, configs)


@operation("read")
def peek(worker: str) -> Op[Beat]:
    """Read what ``heartbeat`` reads, without renewing the lease, to see requests such as cancels."""
    found, rows, configs = yield from ask_all(
        Query("find_worker", {"worker": worker}),
        Query("list_running", {"worker": worker}),
        Query("list_configs", {}),
        final=True,
    )
    return _beat([row for row in found if row[0]], rows, configs)


@operation("read")
def knows(worker: str) -> Op[bool]:
    """Whether the database knows this worker. Retired workers are kept, so they are known too."""
    return bool((yield from ask_last("find_worker", worker=worker)))


@operation("write", priority="heartbeat")
def retire(worker: str) -> Op[None]:
    """Retire a worker. The next sweep rescues jobs that it still runs."""
    yield from ask_last("retire_worker", worker=worker)


@operation("write", priority="heartbeat")
def lead(name: str, worker: str, *, lease: Span) -> Op[bool]:
    """Try to become, or stay, the leader for the length of a lease; return whether this worker is the leader."""
    rows = yield from ask_last("lead", name=name, worker=worker, lease=lease)
    return bool(rows)


@operation("read")
def list_workers() -> Op[list[WorkerRow]]:
    rows = yield from ask_last("list_workers")
    return [WorkerRow(*row) for row in rows]


def _beat(alive: Rows, rows: Rows, configs: Rows) -> Beat:
    running = [Lease(id, token) for id, token, _ in rows]
    canceled = [Lease(id, token) for id, token, cancel in rows if cancel]
    return Beat(bool(alive), running, canceled, dict(configs))
