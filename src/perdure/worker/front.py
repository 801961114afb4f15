"""Where the next claim may look, instead of everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from time import monotonic

from perdure.model.job import SECOND, Claimed
from perdure.ops.claim import Appetite, Claims, Front

DETOUR = 16
"""Claims that look at everything after one that was told there is more than the front."""

DEAR = 0.01
"""Seconds of a claim that has walked past much that is dead: where somebody holds a snapshot nothing is tidied up."""

PLENTY = 20
"""Jobs taken by claims that got all they asked for: there is more where they come from."""

SLACK = SECOND // 10
"""Where there is plenty, the front begins so long before the last job that was taken: one counts from its enqueue, not
from its commit. Where thousands were enqueued at once, as many dead entries as came in that time are walked past."""

PATIENCE = 2 * SECOND
"""The same where claims are dear: one that gets too little does not look again at once, only the next poll does."""

WHOLE = 0.9
"""Seconds from one look at everything to the next, where the front does not go back to the beginning: what was enqueued
long before its commit is found by a worker's next poll, unless such a look takes long."""

RARELY, LONGEST = 20, 5.0
"""The next such look is put off by so many times what this one took longer than a bounded one, yet never by more than
so many seconds: beside a snapshot that is an hour old each walks past millions of dead entries."""


class Lookout:
    """What the last claims of some tasks from some queues tell about the next one.

    While one priority of one queue feeds everybody, looking at it alone is enough, and on PostgreSQL takes a
    fifth off a claim of a hundred jobs and a third off a claim of one. Elsewhere it would be a look too many.
    """

    def __init__(self, *, worth: bool) -> None:
        self._worth = worth
        self._last: Claimed | None = None
        """What the last claim ended with, while all that it found was of one queue and priority."""
        self._detour = 0
        self._dear = False
        self._streak = 0
        """Jobs taken since a claim got less than it asked for."""
        self._whole_at = 0.0
        self._near = inf
        """Seconds of the last bounded claim: its commit, the way there, and whatever keeps the event loop."""

    def front(self, queues: Sequence[str] | None, *, polls: bool) -> Front | None:
        """Where to look in these queues now, if not everywhere. ``polls``: what is missed now is looked for again."""
        last = self._last
        if last is None or self._detour:
            return None
        if queues is not None and last.queue not in queues:
            return None
        plenty = self._streak >= PLENTY
        if not plenty and not (polls and self._dear):
            return Front(last.queue, last.priority)
        if monotonic() >= self._whole_at:
            return None
        return Front(last.queue, last.priority, last.run_at - (SLACK if plenty else PATIENCE))

    def learn(self, appetite: Appetite, claims: Claims, *, took: float, polls: bool) -> bool:
        """``took``: seconds. Return whether to look again: what lies before the front may be all there is."""
        if not self._worth or not appetite:
            return False
        front = appetite.front
        bounded = front is not None and front.since is not None
        short = len(claims.jobs) < appetite.n
        self._streak = 0 if short else self._streak + len(claims.jobs)
        # One that takes many takes long by itself.
        if self._streak < PLENTY and not bounded:
            self._dear = took > DEAR
        if bounded:
            self._near = took
        if front is None:
            self._whole_at = monotonic() + max(WHOLE, min(RARELY * (took - self._near), LONGEST))
            self._detour = max(0, self._detour - 1)
        elif claims.more:
            self._detour = DETOUR
        if claims.jobs and not self._has_gone_back(front):
            one = front is not None or len({(job.queue, job.priority) for job in claims.jobs}) == 1
            self._last = claims.jobs[-1] if one else None
        return short and bounded and not (polls and self._dear)

    def _has_gone_back(self, front: Front | None) -> bool:
        """Whether a turn beside this one has found what came late: the rest of that is not to be led past."""
        if front is None or front.since is None or self._last is None:
            return False
        return self._last.run_at < front.since
