"""Works around rows that cannot be claimed or written.

A row may have values that somebody wrote by hand (a counter at its maximum, text that is not UTF-8, a huge value). Or
the database refuses to write it (a trigger, a bug of the server). One such row makes a statement about many rows fail,
so it is repeated row by row. A row that is certainly damaged is held. Other rows that fail are passed over for a while.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from time import monotonic
from typing import NamedTuple, TypeVar

from perdure.model.job import Claimed, Lease
from perdure.model.lifecycle import Canceled, Failed, FailureKind, Outcome, Released, stripped
from perdure.ops import claim as claim_ops
from perdure.ops.claim import ClaimRequest, Claims
from perdure.ops.finish import Finished
from perdure.plan.plan import Plan, perform
from perdure.worker.database_errors import (
    DAMAGED,
    OUT_OF_SERVICE,
    PERHAPS_REFUSED,
    is_of_the_row,
    is_refusal,
    may_be_of_the_row,
    own_message,
    safe_message,
    unserved,
)
from perdure.worker.row_log import RowLog
from perdure.worker.row_search import Failure, Search, spread
from perdure.worker.split import split

MOST_KNOWN = 10_000
"""How many of the rows that are passed over are remembered."""

PASS_OVER = 60.0
"""Seconds until a row that the database refuses is tried again."""

PASS_OVER_UNPROVEN = 5.0
"""Like ``PASS_OVER``, for a row that a sweep found while it is not known whether other rows can be written."""

SEARCH_AGAIN = 5.0
"""Seconds until rows are tried one by one again, after a search in which the database took none. A server that refuses
everything must not get many more transactions than one that is away."""

PROBE_AGAIN = 0.5
"""Seconds between two claims of a single row in the meantime."""

KEEP_FOR = 60.0
"""Seconds for which a refused outcome is retried unchanged, before a substitute is recorded."""

PAGE = 200
"""The least number of rows to find at once."""

REPLACED = "\ufffd"
"""The replacement character. An id that contains it is not UTF-8 in the database, so no statement can name it."""

_HELD = "Job %s cannot be claimed and is held: %s Mend its row, then perdure run-now %s, or cancel it."
_HELD_TOO = "%d more jobs cannot be claimed and are held: perdure explain shows why."
_PASSED_OVER = (
    "Job %s can be neither claimed nor held: %s It is passed over, which makes each claim slower: "
    "mend or delete its row."
)
_PASSED_OVER_TOO = "%d more jobs can be neither claimed nor held, and are passed over."
_REFUSED = (
    "The database refuses to let job %s run: %s It is passed over for a minute at a time, which makes claims slower: "
    "find out what refuses it, a trigger perhaps."
)
_REFUSED_TOO = "%d more jobs are refused by the database, and are passed over."

T = TypeVar("T")


class Passed(NamedTuple):
    """A row that is passed over for a while. ``error``: set if the row failed while no row could be claimed."""

    until: float
    error: Exception | None


class DamagedRows:
    """The damaged rows that one worker has found."""

    def __init__(self) -> None:
        self._passed_over: dict[str, Passed] = {}
        self._failing_since: dict[Lease, float] = {}
        """Since when the outcome of each lease could not be recorded."""
        self._accepted_at = -inf
        """When an outcome was last recorded."""
        self._unrecorded: set[Lease] = set()
        """The outcomes that were tried one by one since the database took one."""
        self._unrecorded_until = -inf
        self._probe_at = self._search_at = -inf
        """After a search that claimed no row: when to try a single row, and when to search again."""
        self._serves_until = -inf
        """After a search that claimed some rows: until when to try all rows in order."""
        self._warned = False
        self._log = RowLog()

    def claim(self, request: ClaimRequest) -> Plan[Claims]:
        """Claim the jobs that can be claimed. Called after a claim failed, perhaps because of single rows.

        Raise Unavailable if no due row can be claimed, because the rows may then not be the cause.
        """
        search = Search(request, brief=self.refuses_claims, serves=monotonic() < self._serves_until)
        try:
            claims = yield from self._search(search, request)
        except OUT_OF_SERVICE:
            if not search.jobs:
                self._note_none_claimed(brief=search.brief)
                raise
            claims = Claims(search.jobs, more=True)
        if search.jobs:
            self._probe_at = self._search_at = -inf
            self._serves_until = monotonic() + SEARCH_AGAIN
        return claims

    def _note_none_claimed(self, *, brief: bool) -> None:
        now = monotonic()
        self._serves_until, self._probe_at = -inf, now + PROBE_AGAIN
        if not brief:
            self._search_at = now + SEARCH_AGAIN

    @property
    def refuses_claims(self) -> bool:
        """Whether a search has just found that no row can be claimed."""
        return monotonic() < self._search_at

    def refuses_cycle(self, outcomes: Sequence[Outcome]) -> bool:
        """Whether a cycle with these outcomes has just been tried row by row, and the database took none."""
        if outcomes:
            return self.refuses_claims and self.were_just_refused(outcomes)
        return monotonic() < self._probe_at

    def _search(self, search: Search, request: ClaimRequest) -> Plan[Claims]:
        size, skip, held = max(request.n, PAGE), 0, 0
        while True:
            due = yield from self._find_due(request, size, skip)
            held += yield from self._take_from(search, self._usable(search, due))
            if held or not search.goes_on or len(due) < size:
                break
            skip += size
        if not (search.jobs or search.failures or held or search.brief):
            held += yield from self._take_from(search, search.oldest_unproven())
        if search.jobs:
            self._forget_unproven()
            held += yield from self._judge(search)
        elif not held:
            for id, error in search.failures:
                self._pass_over(id, error)
                search.unserved = error
            if search.unserved is not None:
                raise unserved(search.unserved) from None
        # If no job was claimed, do not say that more are due behind the rows that are passed over: the worker would
        # claim again at once.
        untried = skip or len(due) >= size or search.untried
        return Claims(search.jobs, more=bool(held or (search.jobs and untried)))

    def _find_due(self, request: ClaimRequest, n: int, skip: int) -> Plan[list[str]]:
        try:
            return (yield from perform(claim_ops.find_due, request, n=n, skip=skip))
        except DAMAGED as error:
            if not may_be_of_the_row(error):
                raise unserved(error) from None
            if not self._warned:
                self._warned = True
                self._log.error("No job can be claimed: %s", safe_message(error))
            return []

    def _usable(self, search: Search, due: Sequence[str]) -> list[str]:
        unnamed = [id for id in due if REPLACED in id]
        self._log.some(((id, "Its id is not UTF-8.") for id in unnamed), _PASSED_OVER, _PASSED_OVER_TOO)
        now, usable = monotonic(), list[str]()
        for id in due:
            passed = self._passed_over.get(id)
            if passed is not None and passed.until > now:
                if passed.error is not None:
                    search.unserved = passed.error
                    search.unproven.append((passed.until, id))
            elif REPLACED not in id:
                usable.append(id)
        return usable

    def _take_from(self, search: Search, ids: Sequence[str]) -> Plan[int]:
        """Claim the first rows, or others if those are refused. Return how many rows were held."""
        search.untried.update(dict.fromkeys(ids))
        held, enough = 0, 1
        if not (search.serves or search.brief or search.tries):
            held = yield from self._take(search, ids[: search.n])
        if not (search.serves or search.jobs):
            for id in spread([id for id in ids if id in search.untried]):
                if held or not search.goes_on:
                    break
                held += yield from self._take(search, [id])
            search.serves, enough = bool(search.jobs), search.n
        # If the database takes rows although others are refused, this is no outage: try all rows in order.
        while search.serves and search.untried and len(search.jobs) < enough and not held and search.has_time:
            held += yield from self._take(search, [*search.untried][: search.n - len(search.jobs)])
        return held

    def _take(self, search: Search, ids: Sequence[str]) -> Plan[int]:
        """Claim those of these rows that can be claimed. Return how many rows were held."""

        def claim(part: Sequence[str]) -> Plan[list[Claimed]]:
            search.tries += 1
            return (yield from perform(claim_ops.claim_chosen, search.worker, part, limits=search.limits))

        claims = yield from split(ids, claim, serves=search.serves, gives_up=True)
        for jobs in claims.done:
            search.jobs += jobs
        if claims.outage is not None and not is_refusal(claims.outage):
            raise claims.outage
        held = 0
        if claims.refused and not (search.failures or search.brief):
            held += yield from self._hold_all_obvious([*search.untried])
        for id in ids if claims.outage is None else [id for id, _ in claims.refused]:
            search.untried.pop(id, None)
        refused = [Failure(id, error) for id, error in claims.refused]
        held += yield from self._hold([one for one in refused if is_of_the_row(one.error)])
        search.failures += [one for one in refused if not is_of_the_row(one.error)]
        return held

    def _judge(self, search: Search) -> Plan[int]:
        """Try the failed rows again, and hold or pass over the rows that fail again. Return how many rows were held.

        This is called only if other rows could be claimed. So if a row fails twice, the cause is that row.
        """
        held, refused = 0, list[Failure]()
        for failure in search.failures:
            error = yield from self._try_again(search, failure.id)
            if error is None:
                continue
            if may_be_of_the_row(error):
                held += yield from self._hold([Failure(failure.id, error)])
            else:
                refused.append(Failure(failure.id, error))
                self._pass_over(failure.id, None)
        self._log.some(((row.id, safe_message(row.error)) for row in refused), _REFUSED, _REFUSED_TOO)
        return held

    def _try_again(self, search: Search, id: str) -> Plan[Exception | None]:
        """Try to claim a row again.

        Return its error, if any. If the batch is full, the claim is only a test and is rolled back.
        """
        try:
            if len(search.jobs) < search.n:
                search.jobs += yield from perform(
                    claim_ops.claim_chosen, search.worker, [id], limits=search.limits
                )
            else:
                yield from perform(claim_ops.try_to_claim, search.worker, id, limits=search.limits)
        except claim_ops.RolledBack:
            return None
        except PERHAPS_REFUSED as error:
            if not is_refusal(error):
                raise
            return error
        return None

    def _hold_all_obvious(self, ids: Sequence[str]) -> Plan[int]:
        """Hold, in one statement, the rows whose damage SQL can detect."""
        try:
            held = yield from perform(claim_ops.hold_damaged, ids)
        except DAMAGED:
            return 0
        self._log.some(held, _HELD, _HELD_TOO)
        return len(held)

    def _hold(self, failures: Sequence[Failure]) -> Plan[int]:
        """Hold these rows, and pass over the rows that cannot be held. Return how many are held."""
        held: list[tuple[str, str]] = []
        stuck: list[tuple[str, str]] = []
        for id, error in failures:
            reason = safe_message(error)
            try:
                if (yield from perform(claim_ops.hold_unclaimable, id, reason=reason)):
                    held.append((id, reason))
            except PERHAPS_REFUSED as refusal:
                if not is_refusal(refusal):
                    raise
                self._pass_over(id, None)
                stuck.append((id, reason))
        self._log.some(held, _HELD, _HELD_TOO)
        self._log.some(stuck, _PASSED_OVER, _PASSED_OVER_TOO)
        return len(held)

    def _forget_unproven(self) -> None:
        """Forget the rows that failed while no row could be claimed. Now that a row was claimed, they are retried."""
        self._passed_over = {id: one for id, one in self._passed_over.items() if one.error is None}

    def _pass_over(self, id: str, error: Exception | None, seconds: float = PASS_OVER) -> None:
        self._passed_over.pop(id, None)
        if len(self._passed_over) >= MOST_KNOWN:
            del self._passed_over[next(iter(self._passed_over))]
        self._passed_over[id] = Passed(monotonic() + seconds, error)

    def leave_out(self, refused: Sequence[tuple[str, Exception]]) -> Plan[None]:
        """Hold or pass over limited jobs that the database refuses to let run. Only damaged rows are held."""
        yield from self._hold([Failure(id, error) for id, error in refused if is_of_the_row(error)])
        others = [(id, error) for id, error in refused if not is_of_the_row(error)]
        for id, _ in others:
            self._pass_over(id, None)
        self._log.some(((id, safe_message(error)) for id, error in others), _REFUSED, _REFUSED_TOO)

    def note_recorded(self, finished: Finished) -> None:
        """Note that outcomes were recorded. If other outcomes fail, the database as a whole is not the cause."""
        if finished.accepted or finished.refused:
            self._accepted_at = monotonic()
            self._unrecorded.clear()
        if self._failing_since:
            for lease in (*finished.accepted, *finished.refused):
                self._failing_since.pop(lease, None)

    def note_unrecorded(self, failed: Mapping[Lease, Exception]) -> None:
        """Note that these outcomes could not be recorded. They are kept and retried."""
        now = monotonic()
        for lease in failed:
            if len(self._failing_since) >= MOST_KNOWN:
                del self._failing_since[next(iter(self._failing_since))]
            self._failing_since.setdefault(lease, now)
        self._log.some(
            ((lease.job, safe_message(error)) for lease, error in failed.items()),
            "The outcome of job %s cannot be recorded yet: %s Trying again.",
            "The outcomes of %d more jobs cannot be recorded yet.",
        )

    def note_none_recorded(self, outcomes: Iterable[Outcome]) -> None:
        """Note that the database took none of these outcomes, though they were tried one by one."""
        now = monotonic()
        if now >= self._unrecorded_until:
            self._unrecorded.clear()
            self._unrecorded_until = now + SEARCH_AGAIN
        self._unrecorded.update(outcome.lease for outcome in outcomes)

    def were_just_refused(self, outcomes: Iterable[Outcome]) -> bool:
        """Whether these outcomes were tried one by one a moment ago, and the database has taken none since."""
        recent = monotonic() < self._unrecorded_until
        return recent and all(outcome.lease in self._unrecorded for outcome in outcomes)

    def others_recorded_since(self, leases: Iterable[Lease]) -> bool:
        """Whether the database recorded another outcome after it had refused one of these."""
        return any(self._accepted_at >= self._failing_since.get(lease, inf) for lease in leases)

    def substitutes(self, outcome: Outcome, error: Exception, *, last: bool) -> list[Outcome]:
        """The substitutes to try, in order, for an outcome that failed alone. ``last``: there is no later try.

        The first substitute is the outcome as reduced by ``stripped``. The second substitute fails the attempt, and
        exists only if the row may be the cause. A trigger may accept the outcome itself a moment later. So for
        ``KEEP_FOR`` seconds there is no substitute, and the attempt does not fail before other outcomes were recorded.
        These two limits do not apply on the last try, or if the row is certainly the cause.
        """
        certain = last or is_of_the_row(error)
        if not certain and monotonic() - self._failing_since.get(outcome.lease, inf) < KEEP_FOR:
            return []
        instead = [stripped(outcome, own_message(error), dropped="result.refused")]
        if may_be_of_the_row(error) and (certain or self.others_recorded_since([outcome.lease])):
            instead += _as_failure(outcome)
        return instead

    def sweep(
        self,
        rows: Iterable[str],
        write: Callable[[Sequence[str]], Plan[Sequence[T]]],
        sentence: str,
        too: str,
    ) -> Plan[list[T]]:
        """Write rows that a sweep found. Log the rows that are refused, and leave them out of the next sweeps."""
        passed_over = self.passed_over()
        usable = [id for id in rows if id not in passed_over]
        parts = yield from split(usable, write)
        seconds = PASS_OVER if parts.outage is None else PASS_OVER_UNPROVEN
        for id, _ in parts.refused:
            self._pass_over(id, None, seconds)
        self._log.some(((id, safe_message(error)) for id, error in parts.refused), sentence, too)
        if parts.outage is not None:
            raise parts.outage
        return [one for some in parts.done for one in some]

    def passed_over(self) -> set[str]:
        return {id for id, passed in self._passed_over.items() if passed.until > monotonic()}

    def unreportable(self, id: str, error: Exception) -> None:
        self._log.once(id, "What job %s says while it runs cannot be recorded, and is dropped: %s", error)


def _as_failure(outcome: Outcome) -> list[Outcome]:
    """The failure to record if no form of the outcome can be stored; an empty list for a claim that is given back.

    The failed attempt must count. Otherwise a job whose outcome is always refused would run for ever.
    """
    if isinstance(outcome, Released):
        return []
    kind: FailureKind = "fatal" if isinstance(outcome, Canceled) else "error"
    kind = outcome.kind if isinstance(outcome, Failed) else kind
    message = "The database refused the outcome of this attempt."
    return [Failed(outcome.lease, kind, "job.outcome_refused", message)]
