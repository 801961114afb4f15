"""The writes of a sweep, page by page. A row that the database refuses does not stop the other rows."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence

from perdure.internal import failpoints
from perdure.model.job import Instant
from perdure.model.lifecycle import Change
from perdure.ops import job_actions
from perdure.ops import limits as limit_ops
from perdure.ops import set_aside as aside_ops
from perdure.ops import sweep as sweep_ops
from perdure.ops.find import FIRST
from perdure.plan.plan import Plan, perform
from perdure.worker.damaged_rows import DamagedRows
from perdure.worker.database_errors import PERHAPS_REFUSED, is_refusal

MOST_EXPIRED = 10_000
"""How many expired jobs are remembered until they are reported.

A program without a worker never reports them, so the number has to be limited.
"""

MOST_PAGES = 20
"""How many pages of jobs are set aside in one sweep. With more pages, other duties would wait for long."""


class Sweeps:
    """The writes of sweeps, as plans. The sweeper and claims share this object."""

    def __init__(self, damaged: DamagedRows, rng: random.Random) -> None:
        self._damaged = damaged
        self._rng = rng
        self.expired: deque[str] = deque(maxlen=MOST_EXPIRED)
        """Jobs that were found expired and canceled, until they are reported."""

    def retire_silent(
        self, *, sweeper: str, steady_since: Instant | None, wanted: Callable[[], bool]
    ) -> Plan[None]:
        """Retire the workers whose lease has expired."""
        try:
            yield from perform(
                sweep_ops.retire_silent, sweeper=sweeper, steady_since=steady_since, wanted=wanted
            )
            return
        except PERHAPS_REFUSED as error:
            if not is_refusal(error) or not wanted():
                raise
        found = yield from perform(sweep_ops.find_silent, sweeper=sweeper, steady_since=steady_since)
        yield from self._damaged.sweep(
            found,
            lambda ids: perform(
                sweep_ops.retire_silent_chosen, ids, sweeper=sweeper, steady_since=steady_since
            ),
            "Worker %s fell silent and cannot be retired, so its jobs stay: %s Mend its row.",
            "%d more workers fell silent and cannot be retired.",
        )

    def rescue(self, *, page: int = 500) -> Plan[list[Change]]:
        """Free the jobs of retired workers."""
        if failpoints.armed:
            failpoints.reach("between_retirement_and_rescue")
        rescued: list[Change] = []
        after = sweep_ops.FIRST
        while True:
            try:
                one = yield from perform(sweep_ops.rescue, jitter=self._rng.random, after=after, n=page)
            except PERHAPS_REFUSED as error:
                if not is_refusal(error):
                    raise
                one = yield from self._rescue_in_parts(after, page)
            rescued += one.changes
            if one.last is None:
                return rescued
            after = one.last

    def _rescue_in_parts(self, after: str, page: int) -> Plan[sweep_ops.Rescued]:
        """Rescue the jobs of a page, in parts. Rows that cannot be written stay for a later sweep."""
        orphans = yield from perform(sweep_ops.list_orphans, after=after, n=page)
        rescued = yield from self._damaged.sweep(
            orphans,
            lambda ids: perform(sweep_ops.rescue_chosen, ids, jitter=self._rng.random, n=page),
            "Job %s of a worker that fell silent cannot be rescued: %s Mend its row.",
            "%d more jobs of workers that fell silent cannot be rescued.",
        )
        return sweep_ops.Rescued(rescued, orphans[-1] if len(orphans) == page else None)

    def expire(self, *, page: int = 500) -> Plan[int]:
        """Cancel every job that was not started in time."""
        total, more = 0, True
        while more:
            n, more = yield from self.expire_page(page)
            total += n
        return total + (yield from self._sweep_steps())

    def expire_page(self, page: int = 500) -> Plan[tuple[int, bool]]:
        """Cancel a page of expired jobs. Return how many were canceled, and whether there may be more."""
        try:
            expired = yield from perform(sweep_ops.expire, n=page)
            more = len(expired) == page
        except PERHAPS_REFUSED as error:
            if not is_refusal(error):
                raise
            expired, more = yield from self._expire_in_parts(page)
        self.expired += expired
        return len(expired), more

    def _expire_in_parts(self, page: int) -> Plan[tuple[list[str], bool]]:
        known = len(self._damaged.passed_over())
        found = yield from perform(sweep_ops.find_expired, n=page + known)
        expired = yield from self._damaged.sweep(
            found,
            lambda ids: perform(sweep_ops.expire_chosen, ids),
            "Job %s was not started in time and cannot be canceled: %s Mend its row.",
            "%d more jobs were not started in time and cannot be canceled.",
        )
        went_on = bool(expired) or len(self._damaged.passed_over()) > known
        return expired, went_on and len(found) == page + known

    def _sweep_steps(self, n: int = 100) -> Plan[int]:
        """Cancel steps that were not started in time, and resolve gates whose timeout has passed."""
        try:
            return len((yield from perform(sweep_ops.sweep_steps, n=n)))
        except PERHAPS_REFUSED as error:
            if not is_refusal(error):
                raise
        found = yield from perform(sweep_ops.find_overdue, n=n + len(self._damaged.passed_over()))
        swept = yield from self._damaged.sweep(
            found,
            lambda workflows: perform(sweep_ops.sweep_steps, workflows),
            "Steps of workflow %s are overdue and cannot be ended: %s Mend their rows.",
            "Steps of %d more workflows are overdue and cannot be ended.",
        )
        return len(swept)

    def bring_back(self, *, page: int = 1000) -> Plan[int]:
        """Bring back every job that was set aside and is due soon. Return how many jobs."""
        total, behind = 0, FIRST
        while True:
            found = yield from perform(aside_ops.find_due_soon, behind=behind, n=page)
            back = yield from self._damaged.sweep(
                [due.id for due in found],
                lambda ids: perform(aside_ops.bring_back, ids),
                "Job %s is due soon and cannot be brought back: %s Mend its row.",
                "%d more jobs are due soon and cannot be brought back.",
            )
            total += len(back)
            if len(found) < page:
                return total
            behind = found[-1]

    def supersede(self) -> Plan[int]:
        """Cancel the jobs that newer ones replace, or ask their workers to stop them; return how many."""
        found = yield from perform(limit_ops.find_superseded)
        canceled = yield from self._damaged.sweep(
            found,
            _cancel_superseded,
            "Job %s cannot be canceled in favor of a newer one: %s Mend its row.",
            "%d more jobs cannot be canceled in favor of newer ones.",
        )
        return len(canceled)

    def set_aside(self, *, page: int = 5000) -> Plan[int]:
        """Set aside jobs of queues and priorities in which no job is due soon. Return how many jobs."""
        total, after = 0, ""
        for _ in range(MOST_PAGES):
            try:
                done = yield from perform(aside_ops.set_aside, after=after, n=page)
            except PERHAPS_REFUSED as error:
                if not is_refusal(error):
                    raise
                done = yield from self._set_aside_in_parts(after, page)
            total += done.n
            if done.n < page:
                if done.last is None:
                    break
                after = done.last
        return total

    def _set_aside_in_parts(self, after: str, page: int) -> Plan[aside_ops.SetAside]:
        """Set aside jobs of the next queues, in parts. Queues with a row that cannot be written are left out."""
        queues = yield from perform(aside_ops.list_ready_queues, after=after)
        done = yield from self._damaged.sweep(
            queues,
            lambda part: perform(aside_ops.set_aside_in, part, n=page),
            "Jobs of queue %s cannot be set aside, which makes claims slower: %s",
            "Jobs of %d more queues cannot be set aside.",
        )
        return aside_ops.SetAside(len(done), aside_ops.last_of(queues))


def _cancel_superseded(ids: Sequence[str]) -> Plan[list[str]]:
    canceled: list[str] = []
    for id in ids:
        outcome = yield from perform(job_actions.cancel, id, reason="superseded by a newer job")
        if outcome in ("canceled", "cancel_requested"):
            canceled.append(id)
    return canceled
