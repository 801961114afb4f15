"""Records outcomes: all at once, or in parts if the database refuses some outcomes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress

from perdure.errors import RowsLocked
from perdure.model.job import Lease
from perdure.model.lifecycle import Outcome
from perdure.ops import finish as finish_ops
from perdure.ops.finish import Finished
from perdure.plan.plan import Plan, perform
from perdure.worker.damaged_rows import DamagedRows
from perdure.worker.database_errors import OUT_OF_SERVICE, PERHAPS_REFUSED, is_refusal
from perdure.worker.split import split

MOST_FAILING = 10_000
"""How many workflows with a failure are remembered.

If a workflow is forgotten, its next success costs an extra transaction.
"""


class Recorder:
    """Records outcomes for WorkerOperations."""

    def __init__(self, damaged: DamagedRows, rng: random.Random, *, shortens: bool) -> None:
        """``shortens``: whether to record successes of steps in one round trip if possible, see ops/finish_steps.py."""
        self._damaged = damaged
        self._rng = rng
        self.failing: set[str] | None = set() if shortens else None
        """Workflows in which a step has failed or was canceled.

        None if ``shortens`` is False: an embedded database has no round trips.
        """

    def record(
        self, outcomes: Sequence[Outcome], *, skip_locked: bool = False, last: bool = False
    ) -> Plan[Finished]:
        """Record all outcomes that the database can store.

        An outcome neither accepted nor refused must be recorded again.

        ``skip_locked``: do not wait for rows that other transactions have locked. ``last``: there is no later try.
        """
        if not outcomes:
            return Finished([], [])
        try:
            if not skip_locked:
                finished = yield from perform(
                    finish_ops.finish, outcomes, jitter=self._rng.random, failing=self.failing
                )
                finished = yield from self.complete(outcomes, finished)
                self._damaged.note_recorded(finished)
                return finished
        except RowsLocked:
            pass
        except PERHAPS_REFUSED as error:
            if not is_refusal(error):
                raise
            if not last and self._damaged.were_just_refused(outcomes):
                if isinstance(error, OUT_OF_SERVICE):
                    raise
                return Finished([], [])
        serves = self._damaged.others_recorded_since(outcome.lease for outcome in outcomes)
        parts = yield from split(
            outcomes, lambda part: self._record_part(part, last), serves=serves, gives_up=not last
        )
        refused = {outcome.lease: error for outcome, error in parts.refused}
        if not parts.done:
            if not serves and (parts.outage is None or is_refusal(parts.outage)):
                self._damaged.note_none_recorded(outcomes)
            if isinstance(parts.outage, OUT_OF_SERVICE):
                raise parts.outage
            if parts.outage is not None:
                refused = {outcome.lease: parts.outage for outcome in outcomes}
        finished = _joined(parts.done)
        self._damaged.note_unrecorded(refused)
        self._damaged.note_recorded(finished)
        return finished

    def _record_part(self, outcomes: Sequence[Outcome], last: bool) -> Plan[Finished]:
        """Record these outcomes in one transaction. If a single outcome keeps failing, record a substitute."""
        try:
            return (yield from self._record_skipping_locked(outcomes))
        except PERHAPS_REFUSED as error:
            if len(outcomes) > 1 or not is_refusal(error):
                raise
            for instead in self._damaged.substitutes(outcomes[0], error, last=last):
                with suppress(*PERHAPS_REFUSED):
                    finished = yield from self._record_skipping_locked([instead])
                    return finished._replace(instead=[instead])
            raise

    def _record_skipping_locked(self, outcomes: Sequence[Outcome]) -> Plan[Finished]:
        """Record the outcomes whose rows are not locked. The other outcomes must be recorded again."""
        finished = yield from perform(finish_ops.finish_skipping_locked, outcomes, jitter=self._rng.random)
        return (yield from self._recheck(outcomes, finished))

    def complete(self, outcomes: Sequence[Outcome], finished: Finished) -> Plan[Finished]:
        """Record again the outcomes that were left out because a step of their workflow has failed or was canceled."""
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
        """Count refused outcomes as accepted if they are recorded already and only the answer was lost."""
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
        )


def _joined(parts: Sequence[Finished]) -> Finished:
    return Finished(
        [lease for one in parts for lease in one.accepted],
        [lease for one in parts for lease in one.refused],
        [change for one in parts for change in one.changes],
        instead=[outcome for one in parts for outcome in one.instead],
    )
