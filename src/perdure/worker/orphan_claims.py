"""Orphan claims: claims that the database has recorded, but whose answer was lost on the way to the worker."""

from __future__ import annotations

from perdure.model.job import Lease


class OrphanClaims:
    """Finds orphan claims.

    The answer to a claim may still arrive while a cycle is under way. So an unknown claim counts as an orphan only once
    all cycles have ended that had begun when the claim was first seen.
    """

    def __init__(self) -> None:
        self._seen_in: dict[Lease, int] = {}

    def lost(self, unknown: set[Lease], *, begun: int, started_through: int) -> set[Lease]:
        """The orphans among the claims that the database reports and the worker does not know.

        ``begun``: the number of the last cycle that has begun. ``started_through``: the worker has started the jobs of
        all cycles up to this number.
        """
        lost = {lease for lease in unknown if self._seen_in.get(lease, begun + 1) <= started_through}
        self._seen_in = {lease: self._seen_in.get(lease, begun) for lease in unknown - lost}
        return lost
