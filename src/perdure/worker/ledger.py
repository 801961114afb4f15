"""Everything a worker does to the database, as verbs: register, heartbeat, claim, finish, report, rescue, expire."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from time import monotonic

from perdure import failpoints
from perdure.errors import Conflict, InternalError, Invalid, InvalidOption, RowsHeld, StoreBusy
from perdure.model.job import Claimed, Instant, Lease, Span
from perdure.model.lifecycle import Change, Outcome, stripped
from perdure.ops import claim as claim_ops
from perdure.ops import finish as finish_ops
from perdure.ops import report as report_ops
from perdure.ops import sweep as sweep_ops
from perdure.ops import worker as worker_ops
from perdure.ops.claim import Appetite, Claims
from perdure.ops.finish import Finished
from perdure.ops.report import Heard, Said
from perdure.ops.worker import Beat
from perdure.store.plan import Plan, blocking, perform, waiting
from perdure.store.store import Store
from perdure.worker.clock import ClockWatch
from perdure.worker.front import Lookout

CLAIM_ROUNDS = 5
"""How often a claim that met expired jobs is repeated. It may come back short: there is always a next one."""

MOST_EXPIRED = 10_000
"""How many expired jobs are remembered to be told of; a program without a worker tells of none."""

MOST_TROUBLED = 10_000
"""How many workflows are remembered in which something has failed; one that is forgotten costs a transaction more."""

UNSTORABLE = (Invalid, Conflict, InternalError, UnicodeError)
"""What an outcome raises that no database takes."""

Queues = Sequence[str] | Mapping[str, float] | None
"""Strict order, weights, or every queue."""


class Batch(list[Claimed]):
    """What was claimed, in order. ``more``: though it is less than asked for, the next look may find more."""

    def __init__(self, jobs: Iterable[Claimed] = (), *, more: bool = False) -> None:
        super().__init__(jobs)
        self.more = more


def _goes_on(batch: Batch, claims: Claims, again: bool) -> bool:
    """Not behind what was found: what lies before the front comes first, and who holds rows is not waited for."""
    return batch.more and not (batch and (again or claims.locked))


class Ledger:
    """The ledger as a worker sees it."""

    def __init__(self, store: Store, *, rng: random.Random | None = None) -> None:
        self.store = store
        self._rng = rng or random.Random()
        self._watch = ClockWatch()
        self._far = store.dialect == "postgres"
        """Statements cost a round trip, and time before their first row."""
        self._lookouts: dict[tuple[tuple[str, ...], frozenset[str] | None], Lookout] = {}
        """By queues: of several workers in one process each looks at its own."""
        self._troubled: set[str] | None = set() if self._far else None
        """Workflows in which something has failed; None where there are no round trips to save."""
        self.expired: deque[str] = deque(maxlen=MOST_EXPIRED)
        """Jobs that were found expired and canceled, until somebody tells of them."""

    def _register(
        self,
        worker: str,
        *,
        name: str,
        lease: Span,
        tasks: Sequence[str] = (),
        queues: Queues = None,
        slots: int = 1,
    ) -> Plan[Mapping[str, str]]:
        """Begin a worker's life; return the configs of tasks."""
        served = None if queues is None else list(queues)
        return (
            yield from perform(
                worker_ops.register, worker, name=name, lease=lease, tasks=tasks, queues=served, slots=slots
            )
        )

    def _heartbeat(self, worker: str) -> Plan[Beat]:
        """Renew the worker's lease and read back what it is believed to run."""
        return (yield from perform(worker_ops.heartbeat, worker))

    def _glance(self, worker: str) -> Plan[Beat]:
        """Read back what the worker is believed to run, and nothing else."""
        return (yield from perform(worker_ops.glance, worker))

    def _retire(self, worker: str) -> Plan[None]:
        """End a worker's life in order."""
        yield from perform(worker_ops.retire, worker)

    def _lead(self, name: str, worker: str, *, lease: Span) -> Plan[bool]:
        """Whether this worker is the one that does what only one should do."""
        return (yield from perform(worker_ops.lead, name, worker, lease=lease))

    def _claim(
        self, worker: str, *, tasks: Sequence[str], n: int, queues: Queues = None, polls: bool = False
    ) -> Plan[Batch]:
        """Take at most n due jobs, in order. Jobs met past their expiry are canceled and do not count.

        ``polls``: whoever asks will ask again within a second, and what came late can wait until it is looked for.
        """
        order = self._order(queues)
        batch = Batch()
        for _ in range(CLAIM_ROUNDS):
            appetite = self._appetite(worker, tasks, n - len(batch), order, polls=polls)
            if not appetite:
                return Batch(batch)
            asked_at = monotonic()
            claims = yield from perform(claim_ops.claim, appetite)
            again = yield from self._heed(appetite, claims, since=asked_at, polls=polls)
            batch = Batch([*batch, *claims.jobs], more=claims.more or again)
            if claims.locked and not batch:
                claims = yield from perform(claim_ops.claim_around, appetite)
                return Batch(claims.jobs)
            if not _goes_on(batch, claims, again):
                break
        return batch

    def _heed(self, appetite: Appetite, claims: Claims, *, since: float, polls: bool) -> Plan[bool]:
        """What a claim tells about the next one; return whether another is to look further back.

        Where one job has expired there are others to come upon.
        """
        lookout = self._lookout(appetite.tasks, appetite.queues)
        again = lookout.learn(appetite, claims, took=monotonic() - since, polls=polls)
        if claims.expired:
            self.expired += claims.expired
            yield from self._expire_page()
        return again

    def _appetite(
        self, worker: str, tasks: Sequence[str], n: int, order: Sequence[str] | None, *, polls: bool
    ) -> Appetite:
        asked = tasks if order != [] else ()
        return Appetite(worker, asked, n, order, self._lookout(asked, order).front(order, polls=polls))

    def _lookout(self, tasks: Sequence[str], queues: Sequence[str] | None) -> Lookout:
        """Of its own for each lane of each worker: a look at everything by one must not put off the other's."""
        key = (tuple(tasks), None if queues is None else frozenset(queues))
        if key not in self._lookouts:
            self._lookouts[key] = Lookout(worth=self._far)
        return self._lookouts[key]

    def _finish(self, outcomes: Sequence[Outcome]) -> Plan[Finished]:
        """Record outcomes; one that finds itself recorded already counts as accepted.

        One whose row somebody holds for long is neither accepted nor refused, and to be told again.
        """
        if not outcomes:
            return Finished([], [])
        try:
            finished = yield from perform(
                finish_ops.finish, outcomes, dice=self._rng.random, troubled=self._troubled
            )
        except UNSTORABLE as error:
            return (yield from self._finish_apart(outcomes, error))
        except RowsHeld:
            return (yield from self._finish_free(outcomes))
        return (yield from self._complete(outcomes, finished))

    def _finish_free(self, outcomes: Sequence[Outcome]) -> Plan[Finished]:
        """Record the outcomes whose rows nobody holds; the others are to be told again."""
        finished = yield from perform(finish_ops.finish_free, outcomes, dice=self._rng.random)
        return (yield from self._recheck(outcomes, finished))

    def _finish_apart(self, outcomes: Sequence[Outcome], error: Exception) -> Plan[Finished]:
        """One outcome cannot be stored and must not stop the others: halve until it is alone, and strip it."""
        if len(outcomes) == 1:
            bare = [stripped(outcome, _why(error), dropped="result.refused") for outcome in outcomes]
            finished = yield from perform(finish_ops.finish, bare, dice=self._rng.random)
            return (yield from self._recheck(bare, finished))._replace(instead=bare)
        middle = len(outcomes) // 2
        first = yield from self._finish(outcomes[:middle])
        second = yield from self._finish(outcomes[middle:])
        return Finished(
            first.accepted + second.accepted,
            first.refused + second.refused,
            [*first.changes, *second.changes],
            instead=[*first.instead, *second.instead],
        )

    def _cycle(
        self,
        worker: str,
        outcomes: Sequence[Outcome],
        *,
        tasks: Sequence[str],
        n: int,
        queues: Queues = None,
        polls: bool = False,
    ) -> Plan[tuple[Finished, Batch]]:
        """Record outcomes and take the next jobs in one transaction."""
        order = self._order(queues)
        appetite = self._appetite(worker, tasks, n, order, polls=polls)
        asked_at = monotonic()
        try:
            finished, claims = yield from perform(
                finish_ops.cycle, outcomes, dice=self._rng.random, claim=appetite, troubled=self._troubled
            )
        except UNSTORABLE as error:
            if not outcomes:
                raise
            finished = yield from self._finish_apart(outcomes, error)
            return finished, (yield from self._claim(worker, tasks=tasks, n=n, queues=order))
        except RowsHeld:
            finished = yield from self._finish_free(outcomes)
            return finished, (yield from self._claim(worker, tasks=tasks, n=n, queues=order))
        again = yield from self._heed(appetite, claims, since=asked_at, polls=polls)
        finished = yield from self._complete(outcomes, finished)
        batch = Batch(claims.jobs, more=claims.more or again)
        if _goes_on(batch, claims, again):
            left = n - len(batch)
            rest = yield from self._claim(worker, tasks=tasks, n=left, queues=order, polls=polls)
            batch = Batch([*batch, *rest], more=rest.more)
        return finished, batch

    def _report(self, said: Sequence[Said]) -> Plan[list[Heard]]:
        """Store what running jobs say about themselves."""
        if not said:
            return []
        return (yield from perform(report_ops.report, said))

    def _rescue(self, *, page: int = 500, silent: bool = True) -> Plan[list[Change]]:
        """Free the jobs of workers that fell silent. A page that cannot be written is tried row by row.

        Without ``silent`` only the jobs of workers that are retired already.
        """
        if silent:
            yield from perform(sweep_ops.retire_silent, steady_since=self._steady_since())
        if failpoints.armed:
            failpoints.reach("between_retirement_and_rescue")
        rescued: list[Change] = []
        after = sweep_ops.FIRST
        while True:
            try:
                one = yield from perform(sweep_ops.rescue, dice=self._rng.random, after=after, n=page)
            except (InternalError, Invalid, StoreBusy):
                one = yield from self._rescue_singly(after, page)
            rescued += one.changes
            if one.last is None:
                return rescued
            after = one.last

    def _rescue_singly(self, after: str, page: int) -> Plan[sweep_ops.Rescued]:
        """The same page with a transaction for each row; those that refuse to be written stay for the next sweep."""
        orphans = yield from perform(sweep_ops.list_orphans, after=after, n=page)
        rescued: list[Change] = []
        for id in orphans:
            try:
                one = yield from perform(sweep_ops.rescue_one, id, dice=self._rng.random)
            except (InternalError, Invalid, StoreBusy):
                continue
            rescued += one
        return sweep_ops.Rescued(rescued, orphans[-1] if len(orphans) == page else None)

    def _expire(self, *, page: int = 500) -> Plan[int]:
        """Cancel every job that was not started in time."""
        total = 0
        while True:
            n = yield from self._expire_page(page)
            total += n
            if n < page:
                return total + (yield from self._sweep_steps())

    def _sweep_steps(self) -> Plan[int]:
        """The same for steps, and for gates whose time ran out."""
        swept = yield from perform(sweep_ops.sweep_steps)
        return len(swept)

    def _expire_page(self, page: int = 500) -> Plan[int]:
        expired = yield from perform(sweep_ops.expire, n=page)
        self.expired += expired
        return len(expired)

    register, aregister = blocking(_register), waiting(_register)
    heartbeat, aheartbeat = blocking(_heartbeat), waiting(_heartbeat)
    lead, alead = blocking(_lead), waiting(_lead)
    glance, aglance = blocking(_glance), waiting(_glance)
    retire, aretire = blocking(_retire), waiting(_retire)
    claim, aclaim = blocking(_claim), waiting(_claim)
    finish, afinish = blocking(_finish), waiting(_finish)
    cycle, acycle = blocking(_cycle), waiting(_cycle)
    report, areport = blocking(_report), waiting(_report)
    rescue, arescue = blocking(_rescue), waiting(_rescue)
    expire, aexpire = blocking(_expire), waiting(_expire)

    def _complete(self, outcomes: Sequence[Outcome], finished: Finished) -> Plan[Finished]:
        finished = yield from self._recheck(outcomes, finished)
        if not finished.troubled or self._troubled is None:
            return finished
        if len(self._troubled) > MOST_TROUBLED:
            self._troubled.clear()
        self._troubled |= finished.troubled
        told = {*finished.accepted, *finished.refused}
        rest = yield from self._finish([outcome for outcome in outcomes if outcome.lease not in told])
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
            finished.troubled,
        )

    def _steady_since(self) -> Instant | None:
        """On SQLite leases are judged by this host's clock, which may have been set; PostgreSQL judges by its own."""
        return self._watch.steady_since() if self.store.dialect == "sqlite" else None

    def _order(self, queues: Queues) -> list[str] | None:
        """The order of queues for one claim. Weights draw it anew each time: the odds of standing first."""
        if queues is None:
            return None
        if isinstance(queues, Mapping):
            if not all(type(weight) in (int, float) and 0 < weight < math.inf for weight in queues.values()):
                raise InvalidOption("The weight of a queue must be a finite number above 0.")
            return sorted(queues, key=lambda queue: self._rng.expovariate(queues[queue]))
        return list(dict.fromkeys(queues))


def _why(error: Exception) -> str:
    """What may be told of a refusal: an error of the database's may quote what it was given."""
    return str(error) if isinstance(error, Invalid | Conflict) else ""
