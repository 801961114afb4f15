"""Topics of wake-ups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

ANYTHING = "*"
"""Something changed; it is not known what."""
ENDED = "ended"
"""Some job has ended."""
TASKS = "tasks"
"""An operator has set something for a task."""
QUEUES = "queues"
"""Settings of queues have changed."""


def queue_topic(queue: str) -> str:
    """A job of this queue may be claimed now."""
    return f"queue/{queue}"


def worker_topic(worker: str) -> str:
    """A job that this worker runs should stop."""
    return f"worker/{worker}"


def queue_topics(queues: Iterable[str]) -> frozenset[str]:
    return frozenset(map(queue_topic, queues))


def all_of(wakes: Sequence[frozenset[str] | None]) -> frozenset[str] | None:
    """The union; None if one of them is not known."""
    known = [wake for wake in wakes if wake is not None]
    return frozenset[str]().union(*known) if len(known) == len(wakes) else None
