"""Live settings of queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from perdure.model.backoff import Backoff, dump_backoff
from perdure.model.job import Instant
from perdure.ops.audit import act
from perdure.ops.op import Op, Query, ask_all, ask_last, operation
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
def pause(name: str, *, by: str | None = None) -> Op[None]:
    """Hand out nothing from this queue; what runs goes on."""
    pause = Query("pause_queue", {"name": name, "paused": True})
    yield from ask_all(pause, act("pause_queue", f"queue {name}", by), final=True)


@operation("write")
def resume(name: str, *, by: str | None = None) -> Op[None]:
    resume = Query("pause_queue", {"name": name, "paused": False})
    done = act("resume_queue", f"queue {name}", by)
    yield from ask_all(resume, done, final=True, wake=queue_topics([name]))


@operation("write")
def set_backoff(name: str, backoff: Backoff | None, *, by: str | None = None) -> Op[None]:
    """Override the back-off of every task in this queue, from the next failure on."""
    policy = None if backoff is None else dump_backoff(backoff)
    setting = Query("set_queue_backoff", {"name": name, "backoff": policy})
    told = None if policy is None else msgspec.Raw(policy.encode())
    yield from ask_all(setting, act("set_queue", f"queue {name}", by, backoff=told), final=True)


@operation("read")
def find_unknown(names: Sequence[str]) -> Op[tuple[list[str], set[str]]]:
    """Those to which no task goes, in which nothing is due and that have no settings; and every queue that is known."""
    tasks, settings, *due = yield from ask_all(
        Query("list_tasks", {}),
        Query("list_queues", {}),
        *(Query("find_front", {"queue": name}) for name in names),
        final=True,
    )
    known = {row[1] for row in tasks} | {row[0] for row in settings}
    known |= {name for name, rows in zip(names, due, strict=True) if rows}
    return [name for name in names if name not in known], known


@operation("read")
def list_queues() -> Op[list[Queue]]:
    rows = yield from ask_last("list_queues")
    return [
        Queue(name, bool(paused), cool_until, throttles, None if backoff is None else read_policy(backoff))
        for name, paused, cool_until, throttles, backoff in rows
    ]
