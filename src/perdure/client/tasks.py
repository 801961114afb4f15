"""The result of ``app.list_tasks()``."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from perdure.model.backoff import Backoff
from perdure.model.job import SECOND
from perdure.model.json_text import shown_json
from perdure.ops.catalog import CatalogTask
from perdure.ops.running import read_policy
from perdure.request.times import from_us


class TaskDefaults(NamedTuple):
    """The options that the code declares, as a program last saved them. ``timeout`` is in seconds."""

    queue: str
    priority: int
    max_attempts: int
    timeout: float | None
    backoff: Backoff
    max_crashes: int | None


class TaskFacts(NamedTuple):
    """A task. ``defaults`` is None if no program has saved the task, and only jobs name it: it takes no new jobs.

    ``counts``: its ready, scheduled, retrying and running jobs. ``served_by``: the live workers that can run the task.
    """

    name: str
    enabled: bool
    config: dict[str, Any] | None
    defaults: TaskDefaults | None
    saved_at: datetime | None
    served_by: list[str]
    counts: dict[str, int]


def show_task(name: str, task: CatalogTask) -> TaskFacts:
    stored = task.stored
    if stored is None:
        return TaskFacts(name, False, None, None, None, task.served_by, task.counts)
    one = stored.definition
    defaults = TaskDefaults(
        one.queue,
        one.priority,
        one.max_attempts,
        None if one.timeout is None else one.timeout / SECOND,
        read_policy(one.backoff),
        one.max_crashes,
    )
    config = None if stored.config is None else shown_json(stored.config)
    return TaskFacts(
        name,
        stored.known.enabled,
        config if isinstance(config, dict) else None,
        defaults,
        from_us(stored.synced_at),
        task.served_by,
        task.counts,
    )
