"""Records outcomes: many at once, and one by one where the database refuses some."""

from __future__ import annotations

import random
from collections.abc import Sequence

from perdure.errors import Conflict, Invalid, RowsLocked
from perdure.model.job import Lease
from perdure.model.lifecycle import Outcome, stripped
from perdure.ops import finish as finish_ops
from perdure.ops.finish import Finished
from perdure.plan.plan import Plan, perform
from perdure.worker.damaged_rows import DamagedRows
from perdure.worker.refusals import DAMAGED, is_of_the_row

MOST_FAILING = 10_000
"""How many workflows are remembered in which something has failed; one that is forgotten costs a transaction more."""


class Recorder:
    """Used by WorkerOperations."""

    def __init__(self, damaged: DamagedRows, rng: random.Random, *, shortens: bool) -> None:
        """``shortens``: successes of steps go in one round trip while nothing in their workflow has failed."""
        self._damaged = damaged
        self._rng = rng
        self.failing: set[str] | None = set() if shortens else None
        """Workflows in which something has failed; None where there are no round trips to save."""

    def record(self, outcomes: Sequence[Outcome], *, free: bool = False) -> Plan[Finished]:
        """``free``: a row of these is known to be locked; do not wait for it."""
        if not outcomes:
            return Finished([], [])
        failed: dict[Lease, Exception] = {}
        finished = yield from self._record(outcomes, failed, free=free)
        return self._damaged.give_up(finished, failed)

    def _record(
        self, outcomes: Sequence[Outcome], failed: dict[Lease, Exception], *, free: bool
    ) -> Plan[Finished]:
        """``failed`` gets what each outcome raised that could not be recorded alone."""
        try:
            if free:
                return (yield from self._record_free(outcomes))
            finished = yield from perform(
                finish_ops.finish, outcomes, jitter=self._rng.random, failing=self.failing
            )
            return (yield from self.complete(outcomes, finished))
        except RowsLocked:
            if free:
                raise
            return (yield from self._record(outcomes, failed, free=True))
        except DAMAGED as error:
            if len(outcomes) == 1:
                return (yield from self._record_alone(outcomes[0], error, failed))
        # One outcome cannot be stored and must not stop the others: halve until it is alone.
        middle = len(outcomes) // 2
        first = yield from self._record(outcomes[:middle], failed, free=free)
        second = yield from self._record(outcomes[middle:], failed, free=free)
        return Finished(
            first.accepted + second.accepted,
            first.refused + second.refused,
            [*first.changes, *second.changes],
            instead=[*first.instead, *second.instead],
        )

    def _record_free(self, outcomes: Sequence[Outcome]) -> Plan[Finished]:
        """Record the outcomes whose rows are not locked; the others are to be recorded again."""
        finished = yield from perform(finish_ops.finish_unlocked, outcomes, jitter=self._rng.random)
        return (yield from self._recheck(outcomes, finished))

    def _record_alone(
        self, outcome: Outcome, error: Exception, failed: dict[Lease, Exception]
    ) -> Plan[Finished]:
        """As it is, but without the shortcut for steps; else without what it carries.

        A job whose result a trigger refuses for good must still end. But what a trigger refuses may be taken a second
        later, so that nothing is left out at the first try, unless perdure itself refuses what the outcome carries.
        """
        bare = stripped(outcome, _why(error), dropped="result.refused")
        last = is_of_the_row(error) or self._damaged.has_failed(outcome.lease)
        for recordable in (outcome, bare) if last else (outcome,):
            try:
                finished = yield from self._record_free([recordable])
            except DAMAGED as refusal:
                failed[outcome.lease] = refusal
                continue
            failed.pop(outcome.lease, None)
            return finished._replace(instead=[] if recordable is outcome else [bare])
        return Finished([], [])

    def complete(self, outcomes: Sequence[Outcome], finished: Finished) -> Plan[Finished]:
        finished = yield from self._recheck(outcomes, finished)
        if not finished.failing or self.failing is None:
            return finished
        if len(self.failing) > MOST_FAILING:
            self.failing.clear()
        self.failing |= finished.failing
        settled = {*finished.accepted, *finished.refused}
        rest = yield from self.record([outcome for outcome in outcomes if outcome.lease not in settled])
        return rest._replace(
            accepted=finished.accepted + rest.accepted, refused=finished.refused + rest.refused
        )

    def _recheck(self, outcomes: Sequence[Outcome], finished: Finished) -> Plan[Finished]:
        if not finished.refused:
            return finished
        late = set(finished.refused)
        recorded = yield from perform(finish_ops.find_recorded, [o for o in outcomes if o.lease in late])
        known: set[Lease] = set(recorded)
        return Finished(
            finished.accepted + recorded,
            [lease for lease in finished.refused if lease not in known],
            finished.changes,
            finished.failing,
            finished.instead,
            finished.unrecordable,
        )


def _why(error: Exception) -> str:
    """The text of a refusal, if it is ours: an error of the database may quote values."""
    return str(error) if isinstance(error, Invalid | Conflict) else ""
