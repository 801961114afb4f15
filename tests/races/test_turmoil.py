"""Random concurrent actions on the same few jobs: no deadlock, and every call gets its answer."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import pytest

from perdure.errors import IdempotencyConflict
from perdure.model.canonical import Request, canonical
from perdure.model.job import Lease, NewJob, Options
from perdure.model.lifecycle import Failed, Outcome, Report, Snoozed, Succeeded, Throttled
from perdure.ops import browse, enqueue, job_actions
from perdure.ops.op import Operation
from perdure.ops.report import JobReport
from perdure.request.ids import new_id
from perdure.worker.operations import WorkerOperations
from tests.races.roles import TASK, hire, open_operations, prepare, send
from tests.races.threads import at_once, count_deadlocks

JOBS = 6
KEYS = ["a", "b", "c"]


class Trouble:
    """One thread's acts on the few jobs there are. It knows all leases, as several may after lost answers."""

    def __init__(self, operations: WorkerOperations, seed: int) -> None:
        self.operations = operations
        self.store = operations.store
        self.rng = random.Random(seed)
        self.worker = hire(operations)

    def make(self, acts: int) -> int:
        kinds = [self.claim, self.finish, self.finish, self.report, self.operate, self.enqueue, self.lose]
        for _ in range(acts):
            self.rng.choice(kinds)()
        return acts

    def claim(self) -> None:
        self.operations.claim(self.worker, tasks=[TASK], n=self.rng.randint(1, JOBS))

    def finish(self) -> None:
        leases = self.some_leases()
        if self.rng.random() < 0.5:
            self.operations.finish([self.some_end(lease) for lease in leases])
        else:
            self.operations.cycle(self.worker, [self.some_end(lease) for lease in leases], tasks=[TASK], n=2)

    def report(self) -> None:
        self.operations.report([JobReport(lease, Report(done=1, stage="x")) for lease in self.some_leases()])

    def operate(self) -> None:
        verbs = [job_actions.cancel, job_actions.requeue, job_actions.run_now, job_actions.delete]
        verb = cast(Operation[[str], str], self.rng.choice(verbs))
        for id, _ in self.some_leases()[:1]:
            self.store.perform(verb, id)

    def enqueue(self) -> None:
        """In any order; one key may hold a request that differs."""
        request = canonical(Request(self.rng.choice(["{}"] * 9 + ['{"a":1}']), Options()))
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
        """A worker falls silent, its jobs are rescued, and it registers again."""
        self.operations.retire(self.worker)
        self.operations.rescue()
        self.worker = hire(self.operations)

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


def report_on(operations: WorkerOperations, leases: Sequence[Lease]) -> None:
    operations.report([JobReport(lease, Report(done=1)) for lease in leases])


def finish_otherwise(operations: WorkerOperations, leases: Sequence[Lease]) -> None:
    operations.finish([Failed(leases[0], "fatal"), *map(Succeeded, leases[1:])])


@pytest.mark.parametrize("rival", [report_on, finish_otherwise])
def test_a_mixed_finish_locks_in_the_order_of_others(
    postgres_url: str, rival: Callable[[WorkerOperations, Sequence[Lease]], None]
) -> None:
    """The last fails and would be locked first, were it not for those who come from the other end."""
    operations, other = prepare(postgres_url), open_operations(postgres_url)
    worker = hire(operations)
    for _ in range(40):
        send(operations.store, 3)
        leases = sorted(job.lease for job in operations.claim(worker, tasks=[TASK], n=3))
        outcomes: list[Outcome] = [*map(Succeeded, leases[:-1]), Failed(leases[-1], "fatal")]
        at_once(partial(operations.finish, outcomes), partial(rival, other, leases))
    operations.store.close()
    other.store.close()
    assert count_deadlocks(postgres_url) == 0


def trouble(url: str, *, threads: int, acts: int, seed: int = 0) -> None:
    prepare(url).store.close()
    both = [open_operations(url, seed) for _ in range(2)]
    makers = [Trouble(both[i % 2], seed + i) for i in range(threads)]
    assert at_once(*(partial(maker.make, acts) for maker in makers)) == [acts] * threads
    for operations in both:
        operations.store.close()
    if url.startswith("postgresql"):
        assert count_deadlocks(url) == 0


def test_nobody_waits_in_a_circle(url: str) -> None:
    trouble(url, threads=4, acts=80)


@pytest.mark.long
def test_nobody_ever_waits_in_a_circle(url: str) -> None:
    trouble(url, threads=6, acts=1500, seed=1000)
