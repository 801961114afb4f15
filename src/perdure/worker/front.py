"""Where the next claim may look, instead of everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from perdure.model.job import SECOND, Claimed
from perdure.ops.claim import Appetite, Claims, Front

DETOUR = 16
"""Claims that look at everything after one that was told there is more than the front."""

DEAR = 0.01
"""Seconds of a claim that has walked past much that is dead: where somebody holds a snapshot nothing is tidied up."""

SLACK = 2 * SECOND
"""Where that is dear the front begins so long before the last job that was taken: one counts from its enqueue, not
from its commit."""

WHOLE = 0.9
"""Seconds from one look at everything to the next, where the front does not go back to the beginning: what was enqueued
long before its commit is found by a worker's next poll."""


class Lookout:
    """What the last claims tell about the next one.

    While one priority of one queue feeds everybody, looking at it alone is enough, and on PostgreSQL takes a
    fifth off a claim of a hundred jobs and a third off a claim of one. Elsewhere it would be a look too many.
    """

    def __init__(self, *, worth: bool) -> None:
        self._worth = worth
        self._last: Claimed | None = None
        """What the last claim ended with, while all that it found was of one queue and priority."""
        self._tasks: Sequence[str] = ()
        self._detour = 0
        self._dear = False
        self._asked_at = self._whole_at = 0.0

    def front(self, tasks: Sequence[str], queues: Sequence[str] | None, *, polls: bool) -> Front | None:
        """Where to look for these tasks now, if not everywhere. ``polls``: what is missed now is looked for again."""
        self._asked_at = monotonic()
        last = self._last
        if last is None or self._detour or tasks != self._tasks:
            return None
        if queues is not None and last.queue not in queues:
            return None
        if not (polls and self._dear):
            return Front(last.queue, last.priority)
        if self._asked_at >= self._whole_at:
            return None
        return Front(last.queue, last.priority, last.run_at - SLACK)

    def learn(self, appetite: Appetite, claims: Claims) -> None:
        if not self._worth or not appetite:
            return
        front, now = appetite.front, monotonic()
        if front is None or front.since is None:
            self._dear = now - self._asked_at > DEAR
        if front is None:
            self._whole_at = now + WHOLE
            self._detour = max(0, self._detour - 1)
        elif claims.more:
            self._detour = DETOUR
        if claims.jobs:
            one = front is not None or len({(job.queue, job.priority) for job in claims.jobs}) == 1
            self._tasks, self._last = appetite.tasks, claims.jobs[-1] if one else None
