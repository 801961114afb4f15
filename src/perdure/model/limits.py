"""Limits on how many jobs run at once, and which due jobs fit under them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from perdure.model.job import Instant

LimitId: TypeAlias = tuple[str, ...]
"""``("queue", name)``, ``("task", scope)``, ``("key", scope, key)`` or ``("named", name)``."""


class TaskLimit(NamedTuple):
    """The limits of a task's jobs. ``scope``: the task's own name, which the limits of its aliases share.

    ``names``: the named limits that the task shares with other tasks.
    """

    concurrency: int | None
    scope: str
    keyed: bool
    names: tuple[str, ...]
    cancels_running: bool


class Due(NamedTuple):
    """A due job under a limit. Sorted, these jobs are in the order in which a claim takes them.

    ``rank``: the position of the job's queue among the queues that the claim asks for; 0 if it asks for every queue.
    """

    rank: int
    reversed_priority: int
    run_at: Instant
    id: str
    queue: str
    task: str
    key: str | None

    @property
    def group(self) -> Group:
        return Group(self.rank, self.queue, -self.reversed_priority, self.task)


class Group(NamedTuple):
    """The due jobs of one task in one queue and priority."""

    rank: int
    queue: str
    priority: int
    task: str

    @property
    def place(self) -> Group:
        """The group without its rank, so that claims that ask for different queues can compare groups."""
        return self._replace(rank=0)


class Limits(NamedTuple):
    """The limits that a database has. ``version`` grows when limits change; 0 if there were never any."""

    version: int = 0
    tasks: Mapping[str, TaskLimit] = {}
    named: Mapping[str, int | None] = {}
    queues: Mapping[str, int] = {}

    def of(self, queue: str, task: str, key: str | None) -> Iterator[tuple[LimitId, int]]:
        """The limits that a job is under, each with its concurrency."""
        if queue in self.queues:
            yield ("queue", queue), self.queues[queue]
        limit = self.tasks.get(task)
        if limit is None:
            return
        if limit.concurrency is not None and not limit.keyed:
            yield ("task", limit.scope), limit.concurrency
        elif limit.concurrency is not None and key:
            yield ("key", limit.scope, key), limit.concurrency
        for name in limit.names:
            concurrency = self.named.get(name)
            if concurrency is not None:
                yield ("named", name), concurrency

    def cancels_running(self, task: str) -> bool:
        limit = self.tasks.get(task)
        return limit is not None and limit.cancels_running

    def limit(self, queue: str, task: str) -> bool:
        """Whether jobs of this task in this queue are under a limit."""
        return task in self.tasks or queue in self.queues


class Room:
    """How many more jobs may run under each limit."""

    def __init__(self, limits: Limits, running: Iterable[tuple[str, str, str | None, int]]) -> None:
        """``running``: for each queue, task and concurrency key, how many jobs run."""
        self._limits = limits
        self._used: dict[LimitId, int] = {}
        for queue, task, key, count in running:
            self._use(queue, task, key, count)

    def _use(self, queue: str, task: str, key: str | None, count: int) -> None:
        for limit, _ in self._limits.of(queue, task, key):
            self._used[limit] = self._used.get(limit, 0) + count

    def _is_full(self, job: Due) -> bool:
        limits = self._limits.of(job.queue, job.task, job.key)
        return any(self._used.get(limit, 0) >= concurrency for limit, concurrency in limits)

    def fits(self, job: Due) -> bool:
        """Whether there is room for the job now."""
        return not self._is_full(job)

    def key_is_full(self, job: Due) -> bool:
        limit = self._limits.tasks.get(job.task)
        if limit is None or not limit.keyed or limit.concurrency is None or not job.key:
            return False
        return self._used.get(("key", limit.scope, job.key), 0) >= limit.concurrency

    def full_keys(self, task: str) -> list[str]:
        """The concurrency keys of a task that have no room."""
        limit = self._limits.tasks[task]
        concurrency = limit.concurrency or 0
        return [
            id[2]
            for id, used in self._used.items()
            if id[0] == "key" and id[1] == limit.scope and used >= concurrency
        ]

    def choose(self, due: Iterable[Due], n: int) -> tuple[list[Due], list[Due]]:
        """The first n jobs that fit together, in order, and the jobs that were passed over because a limit is full.

        The chosen jobs take up room, so later calls have less.
        """
        chosen: list[Due] = []
        blocked: list[Due] = []
        for job in sorted(due):
            if len(chosen) == n:
                break
            if self._is_full(job):
                blocked.append(job)
                continue
            self._use(job.queue, job.task, job.key, 1)
            chosen.append(job)
        return chosen, blocked
