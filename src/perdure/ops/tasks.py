"""The tasks that the database knows, and whether they may be enqueued."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from msgspec import UNSET, UnsetType

from perdure.errors import NotFound, UnknownTask
from perdure.model.job import TaskDefinition
from perdure.model.redact import load_names
from perdure.ops.audit import act
from perdure.ops.batch import rows_of
from perdure.ops.op import Op, Query, ask_all, ask_last, operation
from perdure.ops.topics import LIMITS, TASKS


class KnownTask(NamedTuple):
    definition: TaskDefinition
    enabled: bool


@operation("read")
def list_tasks() -> Op[dict[str, KnownTask]]:
    rows = yield from ask_last("list_tasks")
    return {row[0]: read_task(*row) for row in rows}


@operation("write")
def sync(tasks: Sequence[TaskDefinition], *, limits: Mapping[str, int] = {}, exact: bool = False) -> Op[None]:
    """Write the tasks of the code. A task that an operator has disabled stays disabled.

    ``limits``: the named limits that the code declares. ``exact``: disable the tasks that are not in the code.
    """
    rows = rows_of(sorted(tasks, key=attrgetter("name")))
    queries = [*(yield from _limit_changes(tasks, limits)), Query("sync_tasks", {"tasks": rows})]
    if exact:
        queries.append(Query("disable_other_tasks", {"tasks": rows}))
    wake = frozenset([LIMITS]) if queries[0].name == "change_limits" else frozenset[str]()
    yield from ask_all(*queries, final=True, wake=wake)


def _limit_changes(tasks: Sequence[TaskDefinition], declared: Mapping[str, int]) -> Op[list[Query]]:
    """The statements that write changed limits, to run before the tasks are written. Empty if no limit changes."""
    # Under this lock, no other program can change a limit between this read and the write.
    names_matter = bool(declared) or any(task.limits for task in tasks)
    _, limited, *rest = yield from ask_all(
        Query("lock_limits", {}),
        Query("list_limited_tasks", {}),
        *([Query("list_named_limits", {})] if names_matter else []),
    )
    known = {row[0]: (row[1], row[2], bool(row[3]), row[4], bool(row[5])) for row in limited}
    unlimited = (None, "", False, None, False)
    differs = any(known.get(task.name, unlimited) != _limits_of(task, unlimited) for task in tasks)
    stored = {row[0]: row[2] for named in rest for row in named}
    writes = [
        Query("declare_limit", {"name": name, "concurrency": concurrency})
        for name, concurrency in declared.items()
        if stored.get(name) != concurrency
    ]
    for task in tasks:
        for name in load_names(task.limits):
            if name not in stored and name not in declared:
                raise NotFound(
                    f"The task {task.name} is under the limit {name}, which nobody has set: "
                    f'declare it with app.limit("{name}", concurrency=...).',
                    code="limit.unknown",
                )
    return [Query("change_limits", {}), *writes] if differs or writes else []


def _limits_of(task: TaskDefinition, unlimited: object) -> object:
    if task.concurrency is None and task.limits is None:
        return unlimited
    scope = task.concurrency_scope or task.name
    return task.concurrency, scope, task.keyed, task.limits, task.cancels_running


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
    concurrency: int | None,
    concurrency_scope: str | None,
    keyed: bool,
    limits: str | None,
    cancels_running: bool,
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
        concurrency=concurrency,
        concurrency_scope=concurrency_scope,
        keyed=bool(keyed),
        limits=limits,
        cancels_running=bool(cancels_running),
    )
    return KnownTask(definition, bool(enabled))
