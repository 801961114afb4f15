"""Which claims the limits allow, implemented a second time: from docs/limiting.md, not from the code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from perdure.model.job import TaskDefinition
from perdure.model.redact import load_names
from tests.lockstep.endings import Job

Limit = tuple[str, ...]
Level = tuple[int, int]
"""The place of a queue among those that are asked, and the priority, negated."""


@dataclass
class NamedLimit:
    concurrency: int | None
    declared: int | None = None
    edited: bool = False

    def declare(self, concurrency: int) -> None:
        """What an operator has set stays."""
        self.declared = concurrency
        if not self.edited:
            self.concurrency = concurrency


class Limits:
    """The limits that jobs are under at one time."""

    def __init__(
        self,
        tasks: Mapping[str, TaskDefinition],
        named: Mapping[str, NamedLimit],
        queues: Mapping[str, int | None],
    ) -> None:
        self._tasks = tasks
        self._named = named
        self._queues = queues

    def limit(self, job: Job) -> bool:
        """Whether it is claimed as a limited job: also if its named limits are lifted."""
        task = self._tasks[job.task]
        return task.concurrency is not None or bool(_names(task)) or self._queues.get(job.queue) is not None

    def is_keyed(self, job: Job) -> bool:
        """Whether its task counts each key on its own."""
        task = self._tasks[job.task]
        return task.keyed and task.concurrency is not None

    def key(self, job: Job) -> str | None:
        """The key that its task's limit counts it by."""
        return job.concurrency_key or None if self.is_keyed(job) else None

    def of(self, job: Job) -> Iterator[tuple[Limit, int]]:
        task = self._tasks[job.task]
        scope = task.concurrency_scope or task.name
        found: list[tuple[Limit, int | None]] = [(("queue", job.queue), self._queues.get(job.queue))]
        if not task.keyed:
            found.append((("task", scope), task.concurrency))
        elif key := self.key(job):
            found.append((("key", scope, key), task.concurrency))
        found += [(("named", name), self._named[name].concurrency) for name in _names(task)]
        return ((limit, most) for limit, most in found if most is not None)


class Slots:
    """The slots of all limits, and how many of each are taken."""

    def __init__(self, limits: Limits, running: Iterable[Job]) -> None:
        self.limits = limits
        self._taken = Counter[Limit]()
        for job in running:
            self.take(job)

    def take(self, job: Job) -> None:
        self._taken.update(limit for limit, _ in self.limits.of(job))

    def fit(self, job: Job) -> bool:
        return all(self._taken[limit] < most for limit, most in self.limits.of(job))


def choose(
    due: Sequence[Job], n: int, level: Callable[[Job], Level], slots: Callable[[], Slots], seen: Sequence[Job]
) -> list[Job]:
    """The limited jobs that a claim of n takes. ``due``: in the order of claims.

    If a key has no room, each key has its turn, and which one is first is not promised. Then the answer is what the
    stores gave (``seen``), if that is right.
    """
    first: list[Job] = []
    key_blocked = False
    room = slots()
    for job in due:
        if len(first) == n:
            break
        if room.fit(job):
            room.take(job)
            first.append(job)
        else:
            key_blocked |= room.limits.key(job) is not None
    return [*seen] if key_blocked and _is_right(seen, due, n, level, slots()) else first


def _is_right(
    seen: Sequence[Job], due: Sequence[Job], n: int, level: Callable[[Job], Level], room: Slots
) -> bool:
    """Whether they are in order, exceed no limit, and no job was left out that fits.

    If the claim is full, jobs may be left out, but none for the sake of others in a later queue or priority.
    """
    limits = room.limits
    if len(seen) > n or [*seen] != [job for job in due if job in seen] or not _are_first(seen, due, limits):
        return False
    left = len(seen)
    for _, jobs in groupby(due, key=level):
        left_out: list[Job] = []
        for job in jobs:
            if job not in seen:
                left_out.append(job)
                continue
            if not room.fit(job):
                return False
            room.take(job)
            left -= 1
        if left or len(seen) < n:
            missed = [job for job in left_out if room.fit(job)]
            if not all(_may_be_overlooked(job, seen, due, n, limits) for job in missed):
                return False
    return True


def _may_be_overlooked(job: Job, seen: Sequence[Job], due: Sequence[Job], n: int, limits: Limits) -> bool:
    """Whether the search for limited jobs may miss this one, although it fits.

    The search sees the first n jobs of each task in a queue and priority. Only if the claim is not full then, it goes
    on from key to key: again for n jobs, among them some of keys that are half full. Jobs without a key are not found
    by that search, or only as many as the limit of a key.
    """
    group = [other for other in due if _group(other) == _group(job)]
    if len(group) <= n or not limits.is_keyed(job):
        return False
    return len(seen) == n or job.concurrency_key is None or any(other in seen for other in group)


def _are_first(seen: Sequence[Job], due: Sequence[Job], limits: Limits) -> bool:
    """Whether of each key, in a queue and a priority, the first jobs were taken."""
    left_out: set[tuple[object, ...]] = set()
    for job in due:
        keyless = limits.is_keyed(job) and job.concurrency_key is None
        kind = _group(job), limits.key(job), keyless
        if job not in seen:
            left_out.add(kind)
        elif kind in left_out:
            return False
    return True


def _group(job: Job) -> tuple[object, ...]:
    return job.queue, job.priority, job.task


def _names(task: TaskDefinition) -> Sequence[str]:
    return load_names(task.limits)
