"""Claims that the database knows of and their worker does not: their commit was never answered."""

from __future__ import annotations

from perdure.model.job import Lease


class Unanswered:
    """Or the answer is still on its way: they count as lost only once the turns are over in which they were seen."""

    def __init__(self) -> None:
        self._seen_in: dict[Lease, int] = {}

    def lost(self, unknown: set[Lease], *, begun: int, over: int) -> set[Lease]:
        """Those that will never be answered. ``unknown`` is all of them, as of now."""
        lost = {lease for lease in unknown if self._seen_in.get(lease, begun + 1) <= over}
        self._seen_in = {lease: self._seen_in.get(lease, begun) for lease in unknown - lost}
        return lost
