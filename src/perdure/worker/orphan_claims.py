"""Orphan claims: the database has them and their worker does not, since the answer to the commit was lost."""

from __future__ import annotations

from perdure.model.job import Lease


class OrphanClaims:
    """Finds them. The answer may still arrive: a claim is lost once all cycles begun before it was seen are over."""

    def __init__(self) -> None:
        self._seen_in: dict[Lease, int] = {}

    def lost(self, unknown: set[Lease], *, begun: int, started_through: int) -> set[Lease]:
        """Which of the claims unknown to the worker will never be answered."""
        lost = {lease for lease in unknown if self._seen_in.get(lease, begun + 1) <= started_through}
        self._seen_in = {lease: self._seen_in.get(lease, begun) for lease in unknown - lost}
        return lost
