"""The tasks that the database knows, and whether they may be enqueued."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from msgspec import UNSET, UnsetType

from perdure.errors import UnknownTask
from perdure.model.job import TaskDefinition
from perdure.ops.audit import act
from perdure.ops.batch import rows_of
from perdure.ops.op import Op, Query, ask_all, ask_last, operation
from perdure.ops.topics import TASKS


class KnownTask(NamedTuple):
    definition: TaskDefinition
    enabled: bool


@operation("read")
def list_tasks() -> Op[dict[str, KnownTask]]:
    rows = yield from ask_last("list_tasks")
    return {row[0]: read_task(*row) for row in rows}


@operation("write")
def sync(tasks: Sequence[TaskDefinition], *, exact: bool = False) -> Op[None]:
    """Write the tasks of the code. A task that an operator has disabled stays disabled.

    ``exact``: disable the tasks that are not in the code.
    """
    rows = rows_of(sorted(tasks, key=attrgetter("name")))
    queries = [Query("sync_tasks", {"tasks": rows})]
    if exact:
        queries.append(Query("disable_other_tasks", {"tasks": rows}))
    yield from ask_all(*queries, final=True)


@operation("write")
def set_task(
    name: str,
    *,
    enabled: bool | None = None,
    config: str | UnsetType | None = UNSET,
    by: str | None = None,
) -> Op[None]:
    """Enable or disable a task, and set the config for its handlers. Existing jobs of a disabled task still run."""
    changes: list[Query] = []
    if enabled is not None:
        changes.append(Query("enable_task", {"name": name, "enabled": enabled}))
    if config is not UNSET:
        changes.append(Query("configure_task", {"name": name, "config": config}))
    if not all((yield from ask_all(*changes))):
        raise UnknownTask
    configured = None if config is UNSET else config is not None
    done = act("set_task", f"task {name}", by, enabled=enabled, configured=configured)
    wake = frozenset() if config is UNSET else frozenset([TASKS])
    yield from ask_all(done, final=True, wake=wake)


def read_task(
    name: str,
    queue: str,
    priority: int,
    max_attempts: int,
    timeout: int | None,
    backoff: str,
    max_crashes: int | None,
    enabled: bool,
    redact: str | None,
) -> KnownTask:
    definition = TaskDefinition(
        name=name,
        queue=queue,
        priority=priority,
        max_attempts=max_attempts,
        timeout=timeout,
        backoff=backoff,
        max_crashes=max_crashes,
        redact=redact,
    )
    return KnownTask(definition, bool(enabled))
