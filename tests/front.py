"""A claim that tries the front whenever it can."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.ops.claim import Appetite, Claims, Front
from perdure.worker.front import Lookout


class Eager(Lookout):
    """Where nothing is known it guesses; only a front that was told of more is followed by a look at everything."""

    def front(self, queues: Sequence[str] | None, *, polls: bool) -> Front | None:
        known = super().front(queues, polls=polls)
        if known is not None or self._detour or not self._worth:
            return known
        return Front(queues[0] if queues else "default", 0)

    def learn(self, appetite: Appetite, claims: Claims, *, took: float, polls: bool) -> bool:
        again = super().learn(appetite, claims, took=took, polls=polls)
        self._detour = int(appetite.front is not None and claims.more)
        return again
