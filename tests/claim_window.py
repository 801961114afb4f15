"""Claims that use a window whenever they can."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.ops.claim import ClaimRequest, Claims, ClaimWindow
from perdure.worker.claim_window import ClaimWindowTracker


class Eager(ClaimWindowTracker):
    """Guesses a window where nothing is known; scans everything only after a claim reported jobs outside its window."""

    def window(self, queues: Sequence[str] | None, *, polls: bool) -> ClaimWindow | None:
        known = super().window(queues, polls=polls)
        if known is not None or self._without_window or not self._enabled:
            return known
        return ClaimWindow(queues[0] if queues else "default", 0)

    def learn(self, request: ClaimRequest, claims: Claims, *, took: float, polls: bool) -> bool:
        again = super().learn(request, claims, took=took, polls=polls)
        self._without_window = int(request.window is not None and claims.more)
        return again
