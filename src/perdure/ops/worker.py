"""A worker's identity: its registration, its heartbeat, its end."""

from __future__ import annotations

from typing import NamedTuple

from perdure.errors import InvalidLease, WorkerRetired
from perdure.model.job import Instant, Lease, Span
from perdure.ops.op import Op, Query, ask, ask_all, ask_last, operation


class Beat(NamedTuple):
    """What the database believes of a worker. ``live`` False: it was retired and must register anew."""

    live: bool
    running: list[Lease]
    cancel_requested: list[Lease]


class WorkerRow(NamedTuple):
    id: str
    name: str
    lease: Span
    started_at: Instant
    beat_at: Instant
    expires_at: Instant
    retired_at: Instant | None


@operation("beat")
def register(worker: str, *, name: str, lease: Span) -> Op[None]:
    """Begin a worker's life: its jobs are its own for as long as it renews its lease."""
    if lease <= 0:
        raise InvalidLease
    if not (yield from ask("register_worker", worker=worker, name=name, lease=lease)):
        raise WorkerRetired


@operation("beat")
def heartbeat(worker: str) -> Op[Beat]:
    """Renew the one row that keeps all of a worker's leases, and read back what it is believed to run."""
    alive, rows = yield from ask_all(
        Query("beat_worker", {"worker": worker}), Query("list_running", {"worker": worker}), final=True
    )
    running = [Lease(id, token) for id, token, _ in rows]
    return Beat(bool(alive), running, [Lease(id, token) for id, token, cancel in rows if cancel])


@operation("beat")
def retire(worker: str) -> Op[None]:
    """End a worker's life in order; whatever it still runs is rescued by the next sweep."""
    yield from ask_last("retire_worker", worker=worker)


@operation("read")
def list_workers() -> Op[list[WorkerRow]]:
    rows = yield from ask_last("list_workers")
    return [WorkerRow(*row) for row in rows]
