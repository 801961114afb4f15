"""The claim window: the part of the queues that the next claim scans, instead of all queues."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from time import monotonic

from perdure.model.job import SECOND, Claimed
from perdure.ops.claim import ClaimRequest, Claims, ClaimWindow

CLAIMS_WITHOUT_WINDOW = 16
"""How many claims scan all queues after a claim reported jobs outside its window."""

SLOW_CLAIM = 0.01
"""We assume that a claim that takes more seconds than this has walked past many dead index entries. Vacuum cannot
remove them because of an old snapshot."""

FULL_STREAK = 20
"""A full claim gets as many jobs as it asks for. After this many jobs from consecutive full claims (a full streak), we
expect more jobs in the same queue and priority."""

SLACK = SECOND // 10
"""During a full streak, the window starts this long before the ``run_at`` of the last claimed job, because commits
arrive out of order. The time is short, because a claim walks past the dead entries of all jobs in it."""

SLOW_SLACK = 2 * SECOND
"""Like ``SLACK``, for slow claims outside a full streak.

Such a claim leaves jobs that precede the window to the next poll, even if it gets fewer jobs than it asked for.
"""

FULL_SCAN_INTERVAL = 0.9
"""While the window has a lower bound (``since``), all queues are scanned once in this many seconds. This is less than
the default time between polls. So a job that was enqueued long before its commit is found at the next poll, unless full
scans are slow."""

FULL_SCAN_SPACING, LONGEST_SPACING = 20, 5.0
"""If a full scan takes longer than a bounded claim, the next full scan is delayed by ``FULL_SCAN_SPACING`` times the
difference, but by at most ``LONGEST_SPACING`` seconds. While there is a snapshot that is an hour old, each full scan
walks past millions of dead entries."""


class ClaimWindowTracker:
    """Derives the next claim's window from the results of the last claims, for one set of tasks and queues.

    While all jobs come from one priority of one queue, a claim need not scan other queues and priorities. On PostgreSQL
    this saves a fifth of the time of a claim of a hundred jobs, and a third for a claim of one job. On SQLite it would
    only add a statement.
    """

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._last: Claimed | None = None
        """The last job of the last claim, if all jobs of that claim were of one queue and priority."""
        self._without_window = 0
        self._slow = False
        self._streak = 0
        """Jobs claimed since the last claim that got fewer jobs than it asked for."""
        self._full_scan_at = 0.0
        self._bounded_took = inf
        """Seconds of the last bounded claim, with its commit, the network and the delays of the event loop."""

    def window(self, queues: Sequence[str] | None, *, polls: bool) -> ClaimWindow | None:
        """The window of the next claim; None to scan all queues.

        ``polls``: the worker polls so often that jobs which this claim misses can wait for the next poll.
        """
        last = self._last
        if last is None or self._without_window:
            return None
        if queues is not None and last.queue not in queues:
            return None
        full = self._streak >= FULL_STREAK
        if not full and not (polls and self._slow):
            return ClaimWindow(last.queue, last.priority)
        if monotonic() >= self._full_scan_at:
            return None
        return ClaimWindow(last.queue, last.priority, last.run_at - (SLACK if full else SLOW_SLACK))

    def learn(self, request: ClaimRequest, claims: Claims, *, took: float, polls: bool) -> bool:
        """Learn from the result of a claim that took ``took`` seconds.

        Return whether to claim again, to look for jobs that precede the window.
        """
        if not self._enabled or not request:
            return False
        window = request.window
        bounded = window is not None and window.since is not None
        short = len(claims.jobs) < request.n
        self._streak = 0 if short else self._streak + len(claims.jobs)
        # A claim in a full streak takes long in any case, and a bounded claim avoids dead entries. Neither tells
        # whether other claims are slow.
        if self._streak < FULL_STREAK and not bounded:
            self._slow = took > SLOW_CLAIM
        if bounded:
            self._bounded_took = took
        if window is None:
            self._full_scan_at = monotonic() + max(
                FULL_SCAN_INTERVAL, min(FULL_SCAN_SPACING * (took - self._bounded_took), LONGEST_SPACING)
            )
            self._without_window = max(0, self._without_window - 1)
        elif claims.more:
            self._without_window = CLAIMS_WITHOUT_WINDOW
        if claims.jobs and not self._moved_back(window):
            one = window is not None or len({(job.queue, job.priority) for job in claims.jobs}) == 1
            self._last = claims.jobs[-1] if one else None
        return short and bounded and not (polls and self._slow)

    def _moved_back(self, window: ClaimWindow | None) -> bool:
        """Whether a concurrent cycle has meanwhile claimed a job that precedes this window.

        In that case the window must stay there, because more such jobs may follow.
        """
        if window is None or window.since is None or self._last is None:
            return False
        return self._last.run_at < window.since
