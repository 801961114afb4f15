"""Everything that producers, workers, operators and a sweeper do, performed on both stores and on the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, fields
from itertools import count
from typing import ParamSpec, Protocol, TypeVar
from uuid import UUID

import pytest
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from perdure.errors import NotFound
from perdure.model.job import SECOND, Claimed, Lease, NewJob
from perdure.model.lifecycle import Outcome, Released, Succeeded
from perdure.model.queue_settings import Settings
from perdure.ops import bulk_actions, enqueue, job_actions, limits, queues, set_aside, tasks
from perdure.ops.find import Found
from perdure.ops.finish import Finished
from perdure.ops.op import Op, Operation, operation
from perdure.ops.report import JobReport
from perdure.ops.topics import LIMITS, queue_topics, worker_topic
from perdure.plan.plan import run
from perdure.request.filter import Filter
from perdure.worker.operations import WorkerOperations
from tests.lockstep import requests
from tests.lockstep.endings import YEAR, Job
from tests.lockstep.limits import NamedLimit
from tests.lockstep.model import Model
from tests.lockstep.pair import Clock, FixedRandom, Pair
from tests.lockstep.promises import Witness

P = ParamSpec("P")
T = TypeVar("T")

MODELLED = [field.name for field in fields(Job)]
EVERYTHING = requests.ClaimArguments(3, list(requests.NAMES), None)
NO_JOB = str(UUID(int=0))
FIRST_ID = 0x018BCFE5_6800_7000_8000_000000000000


@operation("write")
def carry_out(
    verb: bulk_actions.BulkAction, jobs: Sequence[Found], bulk: bulk_actions.BulkProgress
) -> Op[bulk_actions.Counts]:
    """Both stores count acts for themselves; what came of the jobs is the same."""
    batch = yield from verb.batch(jobs, bulk)
    assert batch.locked == []
    return batch.bulk.counts


class Draw(Protocol):
    """How an act makes its choices."""

    def __call__(self, strategy: SearchStrategy[T], /) -> T: ...


@dataclass
class Worker:
    """The memory of a worker's process."""

    id: str
    leases: list[Lease] = field(default_factory=list)


class Company:
    """Each action runs on both stores and on the model, and compares the answers."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.pair.begin()
        self.pair.perform(tasks.sync, requests.TASKS)
        self.model = Model(requests.TASKS, now=Clock.START, roll=FixedRandom.START)
        self.witness = Witness()
        self.numbers, self.births = count(), count(1)
        self.workers = [self.hire() for _ in range(3)]
        self.asked: list[requests.Asked] = []
        self.batches: list[list[NewJob]] = []
        self.leases: list[Lease] = []
        """All leases ever claimed; the workers know which of them are theirs."""
        self.told: list[Outcome] = []

    # The world

    def move_on(self, draw: Draw) -> None:
        """Time passes, and the random number changes."""
        self.wait(draw(requests.TICKS))
        self.pair.rng.value = self.model.roll = draw(requests.ROLLS)

    def wait(self, span: int) -> None:
        self.pair.clock.now = self.model.now = self.model.now + span
        self.ask(lambda operations: run(operations.store, operations.sweeps.bring_back(page=2)))

    # Producers

    def enqueue(self, draw: Draw) -> None:
        self.order(draw(requests.BATCHES))

    def enqueue_keys(self, draw: Draw) -> None:
        self.order(draw(requests.SAME_BUT_KEYS))

    def ask_again(self, draw: Draw) -> None:
        """Repeat a request as another process."""
        if keyed := [asked for asked in self.asked if asked.keyed]:
            self.order([draw(st.sampled_from(keyed))])

    def enqueue_again(self, draw: Draw) -> None:
        """As after a commit whose answer was lost, and soon after: none of it was deleted meanwhile."""
        if self.batches:
            self.send(draw(st.sampled_from(self.batches)))

    def order(self, asked: list[requests.Asked]) -> None:
        self.asked += asked
        self.batches.append([one.new(self.new_id(), self.model.now) for one in asked])
        self.send(self.batches[-1])

    def send(self, jobs: list[NewJob]) -> None:
        keyed = any(job.idempotency_key or job.unique_key for job in jobs)
        expected = self.model.enqueue(jobs)
        if isinstance(expected, type):
            with pytest.raises(expected):
                self.perform(enqueue.enqueue_keyed if keyed else enqueue.enqueue, jobs)
        elif keyed:
            made = self.perform(enqueue.enqueue_keyed, jobs)
            assert [(one.id, one.created, one.state) for one in made] == expected
        else:
            wake = queue_topics(job.queue or requests.home(job.task) for job in jobs)
            made = self.perform(enqueue.enqueue, jobs, wake)
            assert [(one.id, one.created) for one in made] == [(one.id, one.created) for one in expected]

    # Workers

    def work(self, draw: Draw) -> None:
        """A round without accidents."""
        if leases := self.take(self.some_worker(draw), EVERYTHING):
            self.settle([draw(requests.ENDINGS).of(lease) for lease in leases])

    def fare_alike(self, draw: Draw) -> None:
        """Claim round after round, and end all claimed jobs in the same way."""
        worker, ending, span = self.some_worker(draw), draw(requests.RETURNS), draw(requests.TICKS)
        for _ in range(4):
            if leases := self.take(worker, EVERYTHING):
                self.settle([ending.of(lease) for lease in leases])
            self.compare()
            self.wait(span)

    def claim(self, draw: Draw) -> None:
        self.take(self.some_worker(draw), draw(requests.CLAIM_ARGUMENTS))

    def claim_in_turn(self, draw: Draw) -> None:
        """Small workers claim one after the other, until limits are full."""
        n = draw(st.sampled_from([1, 2]))
        for worker in self.workers:
            self.take(worker, EVERYTHING._replace(n=n))
            self.compare()

    def claim_and_never_hear(self, draw: Draw) -> None:
        worker = self.some_worker(draw)
        lost = self.take(worker, EVERYTHING)
        worker.leases = [lease for lease in worker.leases if lease not in lost]

    def finish(self, draw: Draw) -> None:
        if leases := self.some_leases(draw):
            self.settle([draw(requests.ENDINGS).of(lease) for lease in leases])

    def finish_late(self, draw: Draw) -> None:
        """A worker sends outcomes after others took over its jobs."""
        late = [lease for lease in self.leases if not self.model.holder(lease)]
        taken = [
            lease for lease in late if lease.job in self.model.jobs and self.model.jobs[lease.job].worker
        ]
        if taken or late:
            lease = draw(st.sampled_from(taken or late))
            self.settle([draw(requests.SUCCESS | requests.ENDINGS).of(lease)])

    def finish_again(self, draw: Draw) -> None:
        """As after a commit whose answer was lost, or long after the job was taken away."""
        if self.told:
            self.settle([draw(st.sampled_from(self.told[::-1]))])

    def finish_and_claim(self, draw: Draw) -> None:
        worker, wanted = self.some_worker(draw), draw(requests.CLAIM_ARGUMENTS)
        outcomes = [draw(requests.ENDINGS).of(lease) for lease in worker.leases]
        cool = self.model.cooling()
        finished, claimed = self.ask(
            lambda operations: operations.cycle(
                worker.id, outcomes, tasks=wanted.tasks, n=wanted.n, queues=wanted.queues
            )
        )
        self.check_finished(outcomes, finished)
        # Limited jobs were searched before the outcomes were recorded, as if each of them freed a slot.
        told = {outcome.lease.job for outcome in outcomes} & self.model.jobs.keys()
        states = {id: self.model.jobs[id].state for id in told}
        self.check_claimed(
            worker,
            wanted,
            claimed,
            unsure=[id for id, state in states.items() if state == "ready"],
            searched_before="running" in states.values() or cool != self.model.cooling(),
        )

    def report(self, draw: Draw) -> None:
        said = [JobReport(lease, draw(requests.REPORTS)) for lease in self.some_leases(draw)]
        assert self.ask(lambda operations: operations.report(said)) == self.model.report(said)

    def heartbeat(self, draw: Draw) -> None:
        """A retired worker begins anew; a live one gives back what it never heard of."""
        worker = self.some_worker(draw)
        beat = self.ask(lambda operations: operations.heartbeat(worker.id))
        assert beat[:3] == self.model.heartbeat(worker.id)
        if not beat.live:
            self.replace(worker)
            return
        unheard = [lease for lease in beat.running if lease not in worker.leases]
        worker.leases = [lease for lease in worker.leases if lease in beat.running]
        if unheard:
            self.settle([Released(lease) for lease in unheard])

    def crash(self, draw: Draw) -> None:
        """The worker forgets everything; its leases remain."""
        self.replace(self.some_worker(draw))

    def retire(self, draw: Draw) -> None:
        """Retire a worker. It may still send outcomes."""
        worker = self.some_worker(draw)
        self.ask(lambda operations: operations.retire(worker.id))
        self.model.retire(worker.id)

    def change_hands(self, draw: Draw) -> None:
        """The jobs of one worker are rescued and claimed by another; only then the first one sends their outcomes."""
        one, other = draw(st.permutations(self.workers))[:2]
        self.take(one, EVERYTHING)
        late = list(one.leases)
        self.ask(lambda operations: operations.retire(one.id))
        self.model.retire(one.id)
        self.rescue()
        self.take(other, EVERYTHING)
        self.compare()
        if late:
            self.settle([draw(requests.SUCCESS | requests.ENDINGS).of(lease) for lease in late])

    # The sweeper

    def fall_silent(self, _: Draw) -> None:
        """No worker sends a heartbeat until all leases have just expired."""
        self.wait(requests.LEASE)
        self.rescue()

    def rescue(self, _: Draw | None = None) -> None:
        assert (
            self.ask(lambda operations: [change.id for change in operations.rescue(page=2)])
            == self.model.rescue()
        )

    def expire(self, _: Draw | None = None) -> None:
        assert self.ask(lambda operations: operations.expire(page=2)) == self.model.expire()

    def set_aside(self, _: Draw) -> None:
        """Nobody sees a difference."""
        self.perform(set_aside.set_aside, n=3, few=0)

    # Operators

    def cancel(self, draw: Draw) -> None:
        id, reason = self.some_id(draw, "running"), draw(st.sampled_from([None, "withdrawn"]))
        answer = self.perform(job_actions.cancel, id, reason=reason)
        assert answer == self.model.cancel(id, reason)
        if answer == "cancel_requested":
            assert worker_topic(self.model.jobs[id].worker or "") in self.pair.woken

    def requeue(self, draw: Draw) -> None:
        id = self.some_id(draw, "failed", "canceled")
        run, keep = draw(st.sampled_from([None, None, 1, 2])), draw(st.booleans())
        answer = self.perform(job_actions.requeue, id, run=run, keep_checkpoint=keep)
        assert answer == self.model.requeue(id, run, keep)

    def run_now(self, draw: Draw) -> None:
        id = self.some_id(draw)
        assert self.perform(job_actions.run_now, id) == self.model.run_now(id)

    def delete(self, draw: Draw) -> None:
        id, keep = self.some_id(draw), draw(st.sampled_from([None, 3_600_000_000]))
        answer = self.perform(job_actions.delete, id, keep_key=keep)
        assert answer == self.model.delete(id, keep is not None)
        if answer == "deleted":
            self.batches = [batch for batch in self.batches if id not in {job.id for job in batch}]

    def act_on_many(self, draw: Draw) -> None:
        """All that fit, from the newest on, in one batch: each fares as if it were alone."""
        verb, alone = draw(
            st.sampled_from(
                [
                    (bulk_actions.CANCEL, lambda id: self.model.cancel(id, "many")),
                    (bulk_actions.REQUEUE, lambda id: self.model.requeue(id, None, False)),
                    (bulk_actions.RUN_NOW, self.model.run_now),
                    (bulk_actions.DELETE, lambda id: self.model.delete(id, False)),
                ]
            )
        )
        queue = draw(st.sampled_from([None, *requests.QUEUES]))
        filter = Filter(queue=queue, state=draw(st.sampled_from([None, *verb.takes])))
        found = self.perform(bulk_actions.look, filter, among=verb.takes, length=1000).jobs
        assert [job.id for job in found] == self.model.fitting(filter, verb.takes)
        counts = self.perform(
            carry_out, verb, found, bulk_actions.BulkProgress("act", filter, bulk_actions.Counts(), "many")
        )
        assert counts == Counter(alone(job.id) for job in found)
        if verb is bulk_actions.DELETE:
            gone = {job.id for job in found} - self.model.jobs.keys()
            self.batches = [batch for batch in self.batches if gone.isdisjoint(job.id for job in batch)]

    def pause_or_resume(self, draw: Draw) -> None:
        queue = draw(st.sampled_from(requests.QUEUES))
        settings = self.model.queue(queue)
        if settings.is_paused(self.model.now) and draw(st.integers(0, 3)):
            self.resume(queue)
            return
        reason, by = draw(st.sampled_from([None, "a deploy"])), draw(st.sampled_from([None, "ann"]))
        length = draw(st.sampled_from([None, 1, 20 * SECOND]))
        self.perform(queues.pause, queue, resume_in=length, reason=reason, by=by)
        if not settings.is_paused(self.model.now):
            settings.paused, settings.paused_at = True, self.model.now
        settings.paused_by, settings.pause_reason = by, reason
        settings.resume_at = None if length is None else self.model.now + length

    def resume(self, queue: str) -> None:
        ended, settings = self.perform(queues.resume, queue), self.model.queues.get(queue)
        if settings is None or not settings.is_paused(self.model.now):
            assert ended is None
        else:
            assert ended == (
                settings.paused_at,
                settings.paused_by,
                settings.pause_reason,
                settings.resume_at,
            )
        if settings is not None:
            settings.end_pause()

    def end_pauses(self, draw: Draw) -> None:
        over = {
            name
            for name, settings in self.model.queues.items()
            if settings.paused and not settings.is_paused(self.model.now)
        }
        ended = self.perform(queues.end_pauses)
        assert set(ended) == over
        for name in over:
            self.model.queues[name].end_pause()

    def change_settings(self, draw: Draw) -> None:
        queue, changes = draw(st.sampled_from(requests.QUEUES)), draw(requests.CHANGES)
        self.perform(queues.set_queue, queue, changes)
        settings = self.model.queue(queue)
        for name, value in changes.items():
            setattr(settings, name, value)
        settings.edited |= changes.keys()

    def reset_settings(self, draw: Draw) -> None:
        queue = draw(st.sampled_from(requests.QUEUES))
        before, settings = self.perform(queues.reset_queue, queue), self.model.queues.get(queue)
        if settings is None or not settings.edited:
            assert before is None
            return
        assert before is not None
        assert before.edited == settings.edited
        settings.edited = frozenset()
        settings.declare(settings.declared)

    def declare_queues(self, draw: Draw) -> None:
        declared = draw(st.dictionaries(st.sampled_from(requests.QUEUES), requests.CHANGES, max_size=2))
        exact = draw(st.booleans())
        ours = {name: Settings(**changes) for name, changes in declared.items()}
        self.perform(queues.sync_queues, ours, exact=exact)
        for name, settings in ours.items():
            self.model.queue(name).declare(settings)
        for name, queue in self.model.queues.items():
            if exact and queue.declared is not None and name not in ours:
                queue.declare(None)

    def declare_limits(self, draw: Draw) -> None:
        """A program starts whose code declares these tasks and limits."""
        declared = draw(requests.DECLARED_LIMITS)
        if self.model.declare_tasks(*declared):
            self.perform(tasks.sync, declared.tasks, limits=declared.named)
        else:
            with pytest.raises(NotFound):
                self.perform(tasks.sync, declared.tasks, limits=declared.named)

    def set_limit(self, draw: Draw) -> None:
        name, concurrency = (
            draw(st.sampled_from(requests.NAMED_LIMITS)),
            draw(st.none() | requests.CONCURRENCY),
        )
        self.perform(limits.set_limit, name, concurrency)
        limit = self.model.named.setdefault(name, NamedLimit(None))
        limit.concurrency, limit.edited = concurrency, True
        assert LIMITS in self.pair.woken

    def reset_limit(self, draw: Draw) -> None:
        name = draw(st.sampled_from(requests.NAMED_LIMITS))
        if limit := self.model.named.get(name):
            limit.concurrency, limit.edited = limit.declared, False
            assert self.perform(limits.reset_limit, name) == limit.declared
        else:
            with pytest.raises(NotFound):
                self.perform(limits.reset_limit, name)

    def set_task(self, draw: Draw) -> None:
        task = draw(st.sampled_from(requests.NAMES))
        enabled = not self.model.tasks[task].enabled
        self.perform(tasks.set_task, task, enabled=enabled)
        self.model.tasks[task].enabled = enabled

    # What must hold

    def compare(self) -> None:
        """All that is stored, and what it says about the promises."""
        seen = self.pair.look()
        stored = {id: {name: getattr(row, name) for name in MODELLED} for id, row in seen.jobs.items()}
        assert stored == {id: vars(job) for id, job in self.model.jobs.items()}
        assert seen.attempts == self.model.attempts
        assert seen.queues == self.model.queues
        assert seen.limits == self.model.named
        assert seen.counts == self.model.counts()
        assert seen.workers == self.model.live_workers()
        self.witness.see_wakes(seen.jobs, self.model.now, self.pair.woken)
        self.witness.see(seen.jobs)
        self.pair.woken = frozenset()

    def run_dry(self) -> None:
        """Remove all obstacles, and let every job end."""
        for queue in requests.QUEUES:
            self.resume(queue)
        self.wait(2 * YEAR)
        self.rescue()
        self.wait(YEAR)
        self.expire()  # claims leave expired jobs under limits to the sweeper
        last = self.hire()
        while left := self.model.active():
            if leases := self.take(last, EVERYTHING):
                self.settle([Succeeded(lease) for lease in leases])
            assert self.model.active() < left

    # How it is done

    def ask(self, verb: Callable[[WorkerOperations], T]) -> T:
        return self.pair.ask(verb)

    def perform(self, operation: Operation[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self.pair.perform(operation, *args, **kwargs)

    def take(self, worker: Worker, wanted: requests.ClaimArguments) -> list[Lease]:
        claimed = self.ask(
            lambda operations: operations.claim(
                worker.id, tasks=wanted.tasks, n=wanted.n, queues=wanted.queues
            )
        )
        return self.check_claimed(worker, wanted, claimed)

    def check_claimed(
        self,
        worker: Worker,
        wanted: requests.ClaimArguments,
        claimed: Sequence[Claimed],
        *,
        unsure: Collection[str] = (),
        searched_before: bool = False,
    ) -> list[Lease]:
        expected, met = self.model.claim(
            worker.id,
            wanted.tasks,
            wanted.n,
            wanted.order(self.model.roll),
            [job.id for job in claimed],
            unsure=unsure,
            searched_before=searched_before,
        )
        assert [job.lease for job in claimed] == expected
        for job in claimed:
            known = self.model.jobs[job.id]
            assert (job.attempt, job.run) == (known.attempt, known.run)
            assert (job.crashes, job.interruptions) == (known.crashes, known.interruptions)
            assert (job.payload, job.checkpoint, job.tenant) == (
                known.payload,
                known.checkpoint,
                known.tenant,
            )
        self.check_expired(met)
        self.witness.see_claims(worker.id, expected)
        self.leases += expected
        worker.leases += expected
        return expected

    def check_expired(self, met: Sequence[str]) -> None:
        """A claim cancels the expired jobs it meets, and may cancel others."""
        late = self.model.expired()
        rows = self.pair.look().jobs if late else {}
        for job in late:
            row = rows[job.id]
            if row.state == "canceled":
                assert row.token == job.token
                job.end("canceled", self.model.now, "expired")
            else:
                assert job.id not in met

    def settle(self, outcomes: list[Outcome]) -> None:
        refused = not any(self.model.holder(outcome.lease) for outcome in outcomes)
        finished = self.ask(lambda operations: operations.finish(outcomes))
        self.check_finished(outcomes, finished)
        if refused:
            self.witness.see_nothing_changed(self.pair.look().jobs)

    def check_finished(self, outcomes: Sequence[Outcome], finished: Finished) -> None:
        stands = self.model.finish(outcomes)
        assert sorted([*finished.accepted, *finished.refused]) == sorted(stands)
        assert not any(stands[lease] is False for lease in finished.accepted)
        assert not any(stands[lease] is True for lease in finished.refused)
        self.told += outcomes
        for worker in self.workers:
            worker.leases = [lease for lease in worker.leases if self.model.holder(lease)]

    def hire(self) -> Worker:
        worker = Worker(f"worker-{next(self.births)}")
        self.ask(lambda operations: operations.register(worker.id, name="w", lease=requests.LEASE))
        self.model.register(worker.id, requests.LEASE)
        return worker

    def replace(self, worker: Worker) -> None:
        self.workers[self.workers.index(worker)] = self.hire()

    def new_id(self) -> str:
        """In the order of their making, as a process makes them."""
        return str(UUID(int=FIRST_ID + next(self.numbers)))

    def some_id(self, draw: Draw, *states: str) -> str:
        """Any job, or none at all; mostly one in these states."""
        fit = [id for id, job in self.model.jobs.items() if job.state in states]
        return draw(st.sampled_from([*fit * 4, *self.model.jobs, NO_JOB]))

    def some_worker(self, draw: Draw) -> Worker:
        return draw(st.sampled_from(self.workers))

    def some_leases(self, draw: Draw) -> list[Lease]:
        """Of one worker; if it has none, any that some process may still remember."""
        leases = self.some_worker(draw).leases or self.leases
        return draw(st.lists(st.sampled_from(leases), min_size=1, max_size=3, unique=True)) if leases else []
