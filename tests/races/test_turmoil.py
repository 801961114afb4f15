"""Everybody does anything to the same few jobs: nobody waits in a circle, and every call gets its answer."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import pytest

from perdure.errors import IdempotencyConflict
from perdure.ids import new_id
from perdure.model.canonical import Request, canonical
from perdure.model.job import Lease, NewJob
from perdure.model.lifecycle import Failed, Outcome, Report, Snoozed, Succeeded, Throttled
from perdure.ops import browse, enqueue, operate
from perdure.ops.op import Operation
from perdure.ops.report import Said
from perdure.worker.ledger import Ledger
from tests.races.roles import TASK, hire, open_ledger, prepare, send
from tests.races.threads import at_once, count_deadlocks

JOBS = 6
KEYS = ["a", "b", "c"]


class Trouble:
    """One thread's acts on the few jobs there are. It knows all leases, as several may after lost answers."""

    def __init__(self, ledger: Ledger, seed: int) -> None:
        self.ledger = ledger
        self.store = ledger.store
        self.rng = random.Random(seed)
        self.worker = hire(ledger)

    def make(self, acts: int) -> int:
        kinds = [self.claim, self.finish, self.finish, self.report, self.operate, self.enqueue, self.lose]
        for _ in range(acts):
            self.rng.choice(kinds)()
        return acts

    def claim(self) -> None:
        self.ledger.claim(self.worker, tasks=[TASK], n=self.rng.randint(1, JOBS))

    def finish(self) -> None:
        leases = self.some_leases()
        if self.rng.random() < 0.5:
            self.ledger.finish([self.some_end(lease) for lease in leases])
        else:
            self.ledger.cycle(self.worker, [self.some_end(lease) for lease in leases], tasks=[TASK], n=2)

    def report(self) -> None:
        self.ledger.report([Said(lease, Report(done=1, stage="x")) for lease in self.some_leases()])

    def operate(self) -> None:
        verbs = [operate.cancel, operate.requeue, operate.run_now, operate.delete]
        verb = cast(Operation[[str], str], self.rng.choice(verbs))
        for id, _ in self.some_leases()[:1]:
            self.store.perform(verb, id)

    def enqueue(self) -> None:
        """In any order; one key may hold a request that differs."""
        request = canonical(Request(arguments=self.rng.choice(["{}"] * 9 + ['{"a":1}'])))
        jobs = [
            NewJob(
                id=new_id(),
                task=TASK,
                payload="{}",
                unique_key=key,
                idempotency_key=own,
                request=own and request,
            )
            for key in self.rng.sample(KEYS, 2)
            for own in [self.rng.choice([None, *KEYS])]
        ]
        try:
            self.store.perform(enqueue.enqueue_keyed, jobs)
        except IdempotencyConflict:
            self.store.perform(enqueue.enqueue, [NewJob(id=new_id(), task=TASK, payload="{}")])

    def lose(self) -> None:
        """Fall silent, be rescued, begin anew."""
        self.ledger.retire(self.worker)
        self.ledger.rescue()
        self.worker = hire(self.ledger)

    def some_leases(self) -> list[Lease]:
        rows = self.store.perform(browse.list_jobs, n=JOBS)
        leases = [Lease(row.id, row.token) for row in rows]
        return self.rng.sample(leases, min(len(leases), 3))

    def some_end(self, lease: Lease) -> Outcome:
        ends: list[Callable[[Lease], Outcome]] = [
            Succeeded,
            lambda lease: Succeeded(lease, report=Report(done=2)),
            lambda lease: Failed(lease, "error"),
            lambda lease: Failed(lease, "fatal"),
            lambda lease: Snoozed(lease, 0),
            lambda lease: Throttled(lease, 0),
        ]
        return self.rng.choice(ends)(lease)


def report_on(ledger: Ledger, leases: Sequence[Lease]) -> None:
    ledger.report([Said(lease, Report(done=1)) for lease in leases])


def finish_otherwise(ledger: Ledger, leases: Sequence[Lease]) -> None:
    ledger.finish([Failed(leases[0], "fatal"), *map(Succeeded, leases[1:])])


@pytest.mark.parametrize("rival", [report_on, finish_otherwise])
def test_a_mixed_finish_locks_in_the_order_of_others(
    postgres_url: str, rival: Callable[[Ledger, Sequence[Lease]], None]
) -> None:
    """The last fails and would be locked first, were it not for those who come from the other end."""
    ledger, other = prepare(postgres_url), open_ledger(postgres_url)
    worker = hire(ledger)
    for _ in range(40):
        send(ledger.store, 3)
        leases = sorted(job.lease for job in ledger.claim(worker, tasks=[TASK], n=3))
        outcomes: list[Outcome] = [*map(Succeeded, leases[:-1]), Failed(leases[-1], "fatal")]
        at_once(partial(ledger.finish, outcomes), partial(rival, other, leases))
    ledger.store.close()
    other.store.close()
    assert count_deadlocks(postgres_url) == 0


def trouble(url: str, *, threads: int, acts: int, seed: int = 0) -> None:
    prepare(url).store.close()
    ledgers = [open_ledger(url, seed) for _ in range(2)]
    makers = [Trouble(ledgers[i % 2], seed + i) for i in range(threads)]
    assert at_once(*(partial(maker.make, acts) for maker in makers)) == [acts] * threads
    for ledger in ledgers:
        ledger.store.close()
    if url.startswith("postgresql"):
        assert count_deadlocks(url) == 0


def test_nobody_waits_in_a_circle(url: str) -> None:
    trouble(url, threads=4, acts=80)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_nobody_ever_waits_in_a_circle(url: str, seed: int) -> None:
    trouble(url, threads=6, acts=1500, seed=1000 * (seed + 1))
