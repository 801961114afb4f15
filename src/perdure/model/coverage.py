"""Coverage: which ready jobs no live worker would ever claim."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, TypeAlias

Lack: TypeAlias = Literal["worker", "queue", "task", "both"]
"""What is missing: any live worker, one for the queue, one for the task, or a single one for both."""


class Server(NamedTuple):
    """A live worker: the tasks and queues that it claims, and how busy it is.

    If ``queues`` is None, the worker claims from every queue.
    """

    tasks: frozenset[str]
    queues: frozenset[str] | None
    slots: int = 1
    running: int = 0

    def serves(self, queue: str) -> bool:
        return self.queues is None or queue in self.queues


class Unserved(NamedTuple):
    """Ready jobs of one task in one queue that no live worker will claim."""

    queue: str
    task: str
    ready: int
    lacks: Lack


def lack(queue: str, task: str, servers: Sequence[Server]) -> Lack | None:
    """Why no live worker would claim a job; None if some worker would."""
    if not servers:
        return "worker"
    here = [server for server in servers if server.serves(queue)]
    if any(task in server.tasks for server in here):
        return None
    if not here:
        return "queue"
    return "both" if any(task in server.tasks for server in servers) else "task"


def unserved(ready: Iterable[tuple[str, str, int]], servers: Sequence[Server]) -> list[Unserved]:
    """Select the ready jobs, counted by queue and task, that no live worker serves."""
    return [
        Unserved(queue, task, n, missing)
        for queue, task, n in ready
        if (missing := lack(queue, task, servers)) is not None
    ]
