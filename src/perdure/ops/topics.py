"""What wake-ups are about."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

ANYTHING = "*"
"""Something changed, and nobody knows what."""
ENDED = "ended"
"""Some job has ended."""
TASKS = "tasks"
"""An operator has set something for a task."""


def queue_topic(queue: str) -> str:
    """Something in this queue may be claimed now."""
    return f"queue/{queue}"


def worker_topic(worker: str) -> str:
    """Something this worker runs should stop."""
    return f"worker/{worker}"


def queue_topics(queues: Iterable[str]) -> frozenset[str]:
    return frozenset(map(queue_topic, queues))


def all_of(wakes: Sequence[frozenset[str] | None]) -> frozenset[str] | None:
    """Together; None if one of them is not known."""
    known = [wake for wake in wakes if wake is not None]
    return frozenset[str]().union(*known) if len(known) == len(wakes) else None
