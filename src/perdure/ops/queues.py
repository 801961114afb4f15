"""Live settings of queues: operators change them while workers run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from perdure.model.backoff import Backoff, dump_backoff
from perdure.model.job import Instant
from perdure.model.pause import Pause
from perdure.ops.audit import act
from perdure.ops.op import Op, Query, Row, ask_all, ask_last, operation
from perdure.ops.running import read_policy
from perdure.ops.topics import queue_topics


class Queue(NamedTuple):
    """A queue that has settings. Each field is the column of that name."""

    name: str
    paused: bool
    cool_until: Instant | None
    throttles: int
    backoff: Backoff | None
    paused_at: Instant | None
    paused_by: str | None
    pause_reason: str | None

    @property
    def pause(self) -> Pause | None:
        return Pause(self.paused_at, self.paused_by, self.pause_reason) if self.paused else None


SETTINGS: Mapping[str, Any] = {"backoff": None}
"""The columns that ``set_queue`` sets, with their defaults."""


@operation("write")
def pause(name: str, *, reason: str | None = None, by: str | None = None) -> Op[None]:
    """Stop claims from this queue. Running jobs continue."""
    done = act("pause_queue", f"queue {name}", by, reason=reason)
    write = Query("pause_queue", {"name": name, "reason": reason, "by": by})
    yield from ask_all(write, done, final=True)


@operation("write")
def resume(name: str, *, by: str | None = None) -> Op[Pause | None]:
    """Let workers claim from this queue again. Return the pause that this ends; None if the queue was not paused."""
    before, _, _ = yield from ask_all(
        Query("lock_pause", {"name": name}),
        Query("resume_queue", {"name": name}),
        act("resume_queue", f"queue {name}", by),
        final=True,
        wake=queue_topics([name]),
    )
    return Pause(*before[0]) if before else None


@operation("write")
def set_queue(name: str, settings: Mapping[str, Any], *, by: str | None = None) -> Op[None]:
    """Change these settings. A new back-off applies from the next failure on."""
    done = act("set_queue", f"queue {name}", by, **settings)
    yield from ask_all(_set(name, settings), done, final=True)


@operation("read")
def find_unknown(names: Sequence[str]) -> Op[tuple[list[str], set[str]]]:
    """The names that are not known as queues, and all known queues. A known queue has a task, a due job or settings."""
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
    return [read_queue(row) for row in rows]


def _set(name: str, settings: Mapping[str, Any]) -> Query:
    values = {setting: _stored(value) for setting, value in {**SETTINGS, **settings}.items()}
    given = {f"set_{setting}": setting in settings for setting in SETTINGS}
    return Query("set_queue", {"name": name, **values, **given})


def _stored(value: Any) -> Any:
    return dump_backoff(value) if isinstance(value, Backoff) else value


def read_queue(row: Row) -> Queue:
    """Read a row of ``list_queues``. SQLite has numbers for booleans, and a policy is stored as JSON."""
    stored = Queue(*row)
    policy: Any = stored.backoff
    return stored._replace(
        paused=bool(stored.paused), backoff=None if policy is None else read_policy(policy)
    )
