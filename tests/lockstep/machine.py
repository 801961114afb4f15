"""Workers, operators and a sweeper at work on both stores, one act at a time; the clock also goes back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import ClassVar, ParamSpec, TypeVar
from uuid import UUID

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from perdure.model.backoff import Backoff
from perdure.model.job import SECOND, Claimed, Lease, NewJob
from perdure.model.lifecycle import Outcome, Released, Succeeded
from perdure.ops import enqueue, operate, queues, tasks
from perdure.ops.finish import Finished
from perdure.ops.op import Operation
from perdure.ops.report import Said
from perdure.ops.topics import queue_topics, worker_topic
from perdure.worker.ledger import Ledger
from tests.lockstep.endings import YEAR, Job
from tests.lockstep.model import Model
from tests.lockstep.pair import Clock, Pair
from tests.lockstep.promises import Witness
from tests.lockstep.requests import (
    BATCHES,
    ENDINGS,
    HUNGER,
    LEASE,
    NAMES,
    QUEUES,
    REPORTS,
    ROLLS,
    TASKS,
    TICKS,
    Asked,
    Hunger,
    home,
)

P = ParamSpec("P")
T = TypeVar("T")

WORKERS = st.integers(0, 2)
MODELLED = [f.name for f in fields(Job)]


@dataclass
class Worker:
    """What a worker's process has in memory."""

    id: str
    leases: list[Lease] = field(default_factory=list)


class Lockstep(RuleBasedStateMachine):
    """Every rule asks both stores and the model; the invariant compares all that is stored."""

    pair: ClassVar[Pair]

    def __init__(self) -> None:
        super().__init__()
        self.pair.wipe()
        self.pair.woken = frozenset()
        self.pair.clock.now = Clock.START
        self.pair.dice.face = 0.0
        self.pair.perform(tasks.sync, TASKS)
        self.model = Model(TASKS, self.pair.clock.now)
        self.witness = Witness()
        self.agreed = True
        """False from a call until all was compared."""
        self.births = 0
        self.workers = [self.hire() for _ in range(3)]
        self.ids: list[str] = []
        self.batches: list[list[NewJob]] = []
        self.leases: list[Lease] = []
        """All that were ever given out; the workers know which of them are theirs."""
        self.told: list[Outcome] = []

    # The world

    @rule(by=TICKS)
    def move_the_clock(self, by: int) -> None:
        self.pair.clock.now = self.model.now = self.model.now + by

    @rule(roll=ROLLS)
    def throw_the_dice(self, roll: float) -> None:
        self.pair.dice.face = self.model.roll = roll

    # Producers

    @rule(batch=BATCHES)
    def enqueue(self, batch: list[Asked]) -> None:
        jobs = [asked.new(self.new_id(), self.model.now) for asked in batch]
        self.batches.append(jobs)
        self.send(jobs)

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def enqueue_again(self, data: st.DataObject) -> None:
        """As after a commit whose answer was lost."""
        self.send(data.draw(st.sampled_from(self.batches)))

    # Workers

    @rule(worker=WORKERS, hunger=HUNGER, heard=st.sampled_from([True, True, True, False]))
    def claim(self, worker: int, hunger: Hunger, heard: bool) -> None:
        """Sometimes the answer is lost."""
        mine = self.workers[worker]
        claimed = self.take(mine, hunger)
        if not heard:
            mine.leases = [lease for lease in mine.leases if lease not in claimed]

    @precondition(lambda self: self.leases)
    @rule(worker=WORKERS, data=st.data())
    def finish(self, worker: int, data: st.DataObject) -> None:
        """Its own jobs; or, having none, any that some process may still remember."""
        leases = self.workers[worker].leases or self.leases
        chosen = data.draw(st.lists(st.sampled_from(leases), min_size=1, max_size=3))
        self.settle([data.draw(ENDINGS)(lease) for lease in chosen])

    @precondition(lambda self: self.told)
    @rule(data=st.data())
    def finish_again(self, data: st.DataObject) -> None:
        self.settle([data.draw(st.sampled_from(self.told))])

    @precondition(lambda self: self.leases)
    @rule(worker=WORKERS, data=st.data(), hunger=HUNGER)
    def finish_and_claim(self, worker: int, data: st.DataObject, hunger: Hunger) -> None:
        mine = self.workers[worker]
        outcomes = [data.draw(ENDINGS)(lease) for lease in mine.leases]
        finished, claimed = self.ask_ledger(
            lambda ledger: ledger.cycle(
                mine.id, outcomes, tasks=hunger.tasks, n=hunger.n, queues=hunger.queues
            )
        )
        self.check_finished(outcomes, finished)
        self.check_claimed(mine, hunger, claimed)

    @precondition(lambda self: self.leases)
    @rule(worker=WORKERS, data=st.data())
    def report(self, worker: int, data: st.DataObject) -> None:
        leases = self.workers[worker].leases or self.leases
        chosen = data.draw(st.lists(st.sampled_from(leases), min_size=1, max_size=2))
        said = [Said(lease, data.draw(REPORTS)) for lease in chosen]
        assert self.ask_ledger(lambda ledger: ledger.report(said)) == self.model.report(said)

    @rule(worker=WORKERS)
    def heartbeat(self, worker: int) -> None:
        """A retired worker begins anew; a live one gives back what it never heard of."""
        mine = self.workers[worker]
        beat = self.ask_ledger(lambda ledger: ledger.heartbeat(mine.id))
        assert beat == self.model.heartbeat(mine.id)
        if not beat.live:
            self.workers[worker] = self.hire()
            return
        unheard = [lease for lease in beat.running if lease not in mine.leases]
        mine.leases = [lease for lease in mine.leases if lease in beat.running]
        if unheard:
            self.settle([Released(lease) for lease in unheard])

    @rule(worker=WORKERS)
    def crash(self, worker: int) -> None:
        """All it knew is gone; its leases are not."""
        self.workers[worker] = self.hire()

    @rule(worker=WORKERS)
    def retire(self, worker: int) -> None:
        """In order; it may still tell how its last attempts ended."""
        mine = self.workers[worker]
        self.ask_ledger(lambda ledger: ledger.retire(mine.id))
        self.model.retire(mine.id)

    # The sweeper

    @rule()
    def rescue(self) -> None:
        assert self.ask_ledger(lambda ledger: ledger.rescue(page=2)) == self.model.rescue()

    @rule()
    def expire(self) -> None:
        assert self.ask_ledger(lambda ledger: ledger.expire(page=2)) == self.model.expire()

    # Operators

    @precondition(lambda self: self.ids)
    @rule(data=st.data(), reason=st.sampled_from([None, "withdrawn"]))
    def cancel(self, data: st.DataObject, reason: str | None) -> None:
        id = data.draw(st.sampled_from(self.ids))
        answer = self.ask(operate.cancel, id, reason=reason)
        assert answer == self.model.cancel(id, reason)
        if answer == "cancel_requested":
            assert worker_topic(self.model.jobs[id].worker or "") in self.pair.woken

    @precondition(lambda self: self.ids)
    @rule(data=st.data(), run=st.sampled_from([None, None, 1, 2]), keep_checkpoint=st.booleans())
    def requeue(self, data: st.DataObject, run: int | None, keep_checkpoint: bool) -> None:
        id = data.draw(st.sampled_from(self.ids))
        answer = self.ask(operate.requeue, id, run=run, keep_checkpoint=keep_checkpoint)
        assert answer == self.model.requeue(id, run, keep_checkpoint)

    @precondition(lambda self: self.ids)
    @rule(data=st.data())
    def run_now(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(self.ids))
        assert self.ask(operate.run_now, id) == self.model.run_now(id)

    @precondition(lambda self: self.ids)
    @rule(data=st.data(), keep_key=st.sampled_from([None, 3600 * SECOND]))
    def delete(self, data: st.DataObject, keep_key: int | None) -> None:
        id = data.draw(st.sampled_from(self.ids))
        answer = self.ask(operate.delete, id, keep_key=keep_key)
        assert answer == self.model.delete(id, keep_key is not None)

    @rule(queue=st.sampled_from(QUEUES), paused=st.booleans())
    def pause_or_resume(self, queue: str, paused: bool) -> None:
        self.ask(queues.pause if paused else queues.resume, queue)
        self.model.queue(queue).paused = paused

    @rule(queue=st.sampled_from(QUEUES), backoff=st.sampled_from([None, Backoff(base=3, cap=40)]))
    def set_backoff(self, queue: str, backoff: Backoff | None) -> None:
        self.ask(queues.set_backoff, queue, backoff)
        self.model.queue(queue).backoff = backoff

    @rule(task=st.sampled_from(NAMES), enabled=st.booleans())
    def set_task(self, task: str, enabled: bool) -> None:
        self.ask(tasks.set_task, task, enabled=enabled)
        self.model.tasks[task].enabled = enabled

    # What must hold

    @invariant()
    def stores_and_model_agree(self) -> None:
        seen = self.pair.look()
        stored = {id: {name: getattr(row, name) for name in MODELLED} for id, row in seen.jobs.items()}
        assert stored == {id: vars(job) for id, job in self.model.jobs.items()}
        assert seen.attempts == self.model.attempts
        assert seen.queues == self.model.queues
        assert seen.counts == self.model.counts()
        assert seen.workers == self.model.live_workers()
        if not self.agreed:
            self.witness.see_wakes(seen.jobs, self.model.now, self.pair.woken)
        self.witness.see(seen.jobs)
        self.pair.woken = frozenset()
        self.agreed = True

    def teardown(self) -> None:
        if self.agreed:
            self.run_dry()

    def run_dry(self) -> None:
        """Once nothing is in the way any more, every job ends."""
        for queue in QUEUES:
            self.pause_or_resume(queue, False)
        self.move_the_clock(2 * YEAR)
        self.rescue()
        self.move_the_clock(YEAR)
        last = self.hire()
        while any(job.active for job in self.model.jobs.values()):
            leases = self.take(last, Hunger(3, list(NAMES), None))
            self.settle([Succeeded(lease) for lease in leases])
        self.stores_and_model_agree()

    # How it is done

    def ask(self, operation: Operation[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self.agreed = False
        return self.pair.perform(operation, *args, **kwargs)

    def ask_ledger(self, verb: Callable[[Ledger], T]) -> T:
        self.agreed = False
        return self.pair.ask(verb)

    def send(self, jobs: list[NewJob]) -> None:
        expected = self.model.enqueue(jobs)
        if isinstance(expected, type):
            with pytest.raises(expected):
                self.ask(enqueue.enqueue_keyed if _keyed(jobs) else enqueue.enqueue, jobs)
        elif _keyed(jobs):
            made = self.ask(enqueue.enqueue_keyed, jobs)
            assert [(one.id, one.created, one.state) for one in made] == expected
        else:
            wake = queue_topics(job.queue or home(job.task) for job in jobs)
            made = self.ask(enqueue.enqueue, jobs, wake)
            assert [(one.id, one.created) for one in made] == [(one.id, one.created) for one in expected]

    def take(self, worker: Worker, hunger: Hunger) -> list[Lease]:
        claimed = self.ask_ledger(
            lambda ledger: ledger.claim(worker.id, tasks=hunger.tasks, n=hunger.n, queues=hunger.queues)
        )
        return self.check_claimed(worker, hunger, claimed)

    def check_claimed(self, worker: Worker, hunger: Hunger, claimed: Sequence[Claimed]) -> list[Lease]:
        expected = self.model.claim(worker.id, hunger.tasks, hunger.n, hunger.order(self.model.roll))
        assert [job.lease for job in claimed] == expected
        for job in claimed:
            known = self.model.jobs[job.id]
            assert (job.attempt, job.run, job.crashes) == (known.attempt, known.run, known.crashes)
            assert (job.payload, job.checkpoint, job.tenant) == (
                known.payload,
                known.checkpoint,
                known.tenant,
            )
        self.witness.see_claims(worker.id, expected)
        self.leases += expected
        worker.leases += expected
        return expected

    def settle(self, outcomes: list[Outcome]) -> None:
        refused = all(self.model.holder(outcome.lease) is None for outcome in outcomes)
        finished = self.ask_ledger(lambda ledger: ledger.finish(outcomes))
        self.check_finished(outcomes, finished)
        if refused:
            self.witness.see_nothing_changed(self.pair.look().jobs)

    def check_finished(self, outcomes: Sequence[Outcome], finished: Finished) -> None:
        expected = self.model.finish(outcomes)
        assert set(finished.accepted) == expected
        assert set(finished.refused) == {outcome.lease for outcome in outcomes} - expected
        self.told += outcomes
        for worker in self.workers:
            worker.leases = [lease for lease in worker.leases if self.model.holder(lease)]

    def hire(self) -> Worker:
        self.births += 1
        worker = Worker(f"worker-{self.births}")
        self.ask_ledger(lambda ledger: ledger.register(worker.id, name="w", lease=LEASE))
        self.model.register(worker.id, LEASE)
        return worker

    def new_id(self) -> str:
        """In the order of their making, as a process makes them."""
        id = str(UUID(int=0x018BCFE5_6800_7000_8000_000000000000 + len(self.ids)))
        self.ids.append(id)
        return id


def _keyed(jobs: Sequence[NewJob]) -> bool:
    return any(job.idempotency_key or job.unique_key for job in jobs)
