"""Live settings of queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from perdure.model.backoff import Backoff, dump_backoff
from perdure.model.job import Instant
from perdure.ops.audit import act
from perdure.ops.op import Op, Query, Row, ask_all, ask_last, operation
from perdure.ops.running import read_policy
from perdure.ops.topics import queue_topics


class Queue(NamedTuple):
    """A queue with settings of its own. Each field is the column of that name."""

    name: str
    paused: bool
    cool_until: Instant | None
    throttles: int
    backoff: Backoff | None


SETTINGS: Mapping[str, Any] = {"paused": False, "backoff": None}
"""The columns that operators can set, with their defaults."""


@operation("write")
def pause(name: str, *, by: str | None = None) -> Op[None]:
    """Stop claims from this queue. Running jobs continue."""
    done = act("pause_queue", f"queue {name}", by)
    yield from ask_all(_set(name, {"paused": True}), done, final=True)


@operation("write")
def resume(name: str, *, by: str | None = None) -> Op[None]:
    done = act("resume_queue", f"queue {name}", by)
    yield from ask_all(_set(name, {"paused": False}), done, final=True, wake=queue_topics([name]))


@operation("write")
def set_queue(name: str, settings: Mapping[str, Any], *, by: str | None = None) -> Op[None]:
    """Change these settings. A new back-off applies from the next failure on."""
    done = act("set_queue", f"queue {name}", by, **settings)
    yield from ask_all(_set(name, settings), done, final=True)


@operation("read")
def find_unknown(names: Sequence[str]) -> Op[tuple[list[str], set[str]]]:
    """The names without a task, a due job or settings, which are no known queues. Also all known queues."""
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
    """A row of ``list_queues``. SQLite has numbers for booleans, and a policy is stored as JSON."""
    stored = Queue(*row)
    policy: Any = stored.backoff
    return stored._replace(
        paused=bool(stored.paused), backoff=None if policy is None else read_policy(policy)
    )
