"""Topics: the events that a commit can announce."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

ANYTHING = "*"
"""Any change. Listeners must check everything."""
ENDED = "ended"
"""Some job has ended."""
TASKS = "tasks"
"""An operator has changed the config of a task."""
QUEUES = "queues"
"""Settings of queues have changed."""

LIMITS = "limits"
"""A limit was changed."""


def queue_topic(queue: str) -> str:
    """The topic that says that a job of this queue may be claimed now."""
    return f"queue/{queue}"


def worker_topic(worker: str) -> str:
    """The topic that says that this worker should stop one of its jobs."""
    return f"worker/{worker}"


def queue_topics(queues: Iterable[str]) -> frozenset[str]:
    return frozenset(map(queue_topic, queues))


def all_of(wakes: Sequence[frozenset[str] | None]) -> frozenset[str] | None:
    """The union of several sets of topics; None if one of the sets is None."""
    known = [wake for wake in wakes if wake is not None]
    return frozenset[str]().union(*known) if len(known) == len(wakes) else None
