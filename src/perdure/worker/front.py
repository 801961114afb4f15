"""Whether the next claim may look at the front alone."""

from __future__ import annotations

from perdure.ops.claim import Appetite, Claims

DETOUR = 16
"""Claims that look at everything after one that found too little in front."""


class Front:
    """What the last claims tell about the next one.

    While one priority of one queue feeds everybody, looking at it alone is enough, and on PostgreSQL takes a
    fifth off a claim of a hundred jobs and a third off a claim of one. Elsewhere it would be a look too many.
    """

    def __init__(self, *, worth: bool) -> None:
        self._worth = worth
        self._detour = 0
        self.likely = False

    def learn(self, appetite: Appetite, claims: Claims) -> None:
        if not self._worth:
            return
        if appetite.front:
            if claims.more:
                self.likely, self._detour = False, DETOUR
        elif self._detour:
            self._detour -= 1
        elif appetite:
            groups = {(job.queue, job.priority) for job in claims.jobs}
            self.likely = len(claims.jobs) == appetite.n and len(groups) == 1
