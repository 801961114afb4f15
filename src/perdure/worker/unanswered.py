"""Claims that the database knows of and their worker does not: their commit was never answered."""

from __future__ import annotations

from perdure.model.job import Lease


class Unanswered:
    """Or the answer is still on its way: they count as lost only once the turn is over in which they were seen."""

    def __init__(self) -> None:
        self._seen_in: dict[Lease, int] = {}

    def lost(self, unknown: set[Lease], turn: int, *, under_way: bool) -> set[Lease]:
        """Those that will never be answered. ``unknown`` is all of them, as of now."""
        lost = {
            lease
            for lease in unknown
            if lease in self._seen_in and (self._seen_in[lease] < turn or not under_way)
        }
        self._seen_in = {lease: self._seen_in.get(lease, turn) for lease in unknown - lost}
        return lost
