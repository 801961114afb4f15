"""Live settings of queues."""

from __future__ import annotations

from typing import NamedTuple

from perdure.model.backoff import Backoff, dump_backoff
from perdure.model.job import Instant
from perdure.ops.op import Op, ask_last, operation
from perdure.ops.running import read_policy
from perdure.ops.topics import queue_topics


class Queue(NamedTuple):
    """A queue that has settings of its own."""

    name: str
    paused: bool
    cool_until: Instant | None
    throttles: int
    backoff: Backoff | None


@operation("write")
def pause(name: str) -> Op[None]:
    """Hand out nothing from this queue; what runs goes on."""
    yield from ask_last("pause_queue", name=name, paused=True)


@operation("write")
def resume(name: str) -> Op[None]:
    yield from ask_last("pause_queue", name=name, paused=False, wake=queue_topics([name]))


@operation("write")
def set_backoff(name: str, backoff: Backoff | None) -> Op[None]:
    """Override the back-off of every task in this queue, from the next failure on."""
    yield from ask_last(
        "set_queue_backoff", name=name, backoff=None if backoff is None else dump_backoff(backoff)
    )


@operation("read")
def list_queues() -> Op[list[Queue]]:
    rows = yield from ask_last("list_queues")
    return [
        Queue(name, bool(paused), cool_until, throttles, None if backoff is None else read_policy(backoff))
        for name, paused, cool_until, throttles, backoff in rows
    ]
