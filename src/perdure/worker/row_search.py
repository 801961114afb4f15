"""The state of one claim that goes row by row, after a claim of many rows was refused."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import NamedTuple

from perdure.model.job import Claimed
from perdure.ops.claim import ClaimRequest

TRY_FOR = 0.5
"""Seconds for which one claim tries row after row. The next claim skips the rows that this claim passes over."""

MOST_TRIES = 20
"""How many transactions one claim tries before it gives up, if it has claimed no row. Perhaps none can be claimed."""

UNPROVEN_AGAIN = 20
"""If a claim finds no other row, it retries some of this many rows that failed while no row could be claimed."""


class Failure(NamedTuple):
    """A row that failed alone."""

    id: str
    error: Exception


class Search:
    """The state of one claim that tries row by row.

    ``brief``: try a single row, because the last search claimed none. ``serves``: the last search claimed some.
    """

    def __init__(self, request: ClaimRequest, *, brief: bool = False, serves: bool = False) -> None:
        self.worker = request.worker
        self.limits = request.limits
        self.n = request.n
        self.brief = brief
        self.serves = serves
        self.tries = 0
        """How many transactions were tried."""
        self.jobs: list[Claimed] = []
        self.failures: list[Failure] = []
        self.unserved: Exception | None = None
        """The error of a due row that failed while no row could be claimed."""
        self.unproven: list[tuple[float, str]] = []
        """The due rows that failed while no row could be claimed: until when each is passed over, and its id."""
        self.untried: dict[str, None] = {}
        """The due rows that were not tried, in order."""
        self._until = monotonic() + TRY_FOR

    @property
    def goes_on(self) -> bool:
        most = 1 if self.brief else MOST_TRIES
        return not self.jobs and (self.serves or self.tries < most) and self.has_time

    @property
    def has_time(self) -> bool:
        return monotonic() < self._until

    def oldest_unproven(self) -> list[str]:
        """The rows to retry if no other row is due. All rows may have failed for a cause that is gone by now."""
        return [id for _, id in sorted(self.unproven)[:UNPROVEN_AGAIN]]


def spread(ids: Sequence[str]) -> list[str]:
    """Up to four of these rows: the last one, and some that lie far apart. Refused rows often lie side by side."""
    last = len(ids) - 1
    return [ids[i] for i in dict.fromkeys((last, last // 2, last // 4, 3 * last // 4)) if i >= 0]
