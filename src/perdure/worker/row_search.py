"""The state of one claim that goes row by row, after a claim of many rows was refused."""

from __future__ import annotations

from time import monotonic
from typing import NamedTuple

from perdure.model.job import Claimed
from perdure.ops.claim import ClaimRequest

TRY_FOR = 0.5
"""Seconds for which one claim tries row after row. The next claim skips the rows that this claim passes over."""

UNPROVEN_AGAIN = 20
"""If a claim finds no other row, it retries this many of the rows that failed while no row could be claimed."""


class Failure(NamedTuple):
    """A row that failed alone."""

    id: str
    error: Exception


class Search:
    """The state of one claim that tries row by row."""

    def __init__(self, request: ClaimRequest) -> None:
        self.worker = request.worker
        self.limits = request.limits
        self.n = request.n
        self.jobs: list[Claimed] = []
        self.failures: list[Failure] = []
        self.unserved: Exception | None = None
        """The error of a due row that failed while no row could be claimed."""
        self.unproven: list[tuple[float, str]] = []
        """The due rows that failed while no row could be claimed: until when each is passed over, and its id."""
        self._until = monotonic() + TRY_FOR

    @property
    def goes_on(self) -> bool:
        return not self.jobs and monotonic() < self._until

    def oldest_unproven(self) -> list[str]:
        """The rows to retry if no other row is due. All rows may have failed for a cause that is gone by now."""
        return [id for _, id in sorted(self.unproven)[:UNPROVEN_AGAIN]]
