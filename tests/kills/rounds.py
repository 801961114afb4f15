"""Rounds of killing. Each begins and ends with two workers and a producer at work; a third worker joins for it."""

from __future__ import annotations

import random
import signal
from typing import Literal, NamedTuple, TypeAlias

from perdure.internal.failpoints import Place
from perdure.ops import browse
from perdure.ops import worker as worker_ops
from perdure.request.filter import Filter
from perdure.store.store import Store
from tests.harness.processes import KILLED
from tests.harness.waiting import until
from tests.kills.fleet import Fleet, Participant
from tests.kills.history import size_of

Role: TypeAlias = Literal["worker", "stopping worker", "sweeper", "producer"]


class Stage(NamedTuple):
    """A failpoint, the process that dies there, and how often the place may be passed before."""

    place: Place
    role: Role = "worker"
    most: int = 1


STAGES = [
    Stage("before_enqueue", "producer", 5),
    Stage("after_enqueue_before_answer", "producer", 5),
    Stage("before_commit", "producer", 5),
    Stage("after_commit", "producer", 5),
    Stage("before_commit", most=30),
    Stage("after_commit", most=30),
    Stage("before_register"),
    Stage("after_register"),
    Stage("before_claim", most=5),
    Stage("after_claim_before_start", most=5),
    Stage("before_handler", most=20),
    Stage("after_handler_before_flush", most=20),
    Stage("before_flush", most=10),
    Stage("after_flush_before_answer", most=10),
    Stage("before_heartbeat", most=3),
    Stage("after_heartbeat", most=3),
    Stage("before_report", most=2),
    Stage("before_own_commit", most=3),
    Stage("after_own_commit", most=3),
    Stage("before_rescue", "sweeper"),
    Stage("between_retirement_and_rescue", "sweeper"),
    Stage("after_rescue", "sweeper"),
    Stage("while_draining", "stopping worker"),
    Stage("before_retirement", "stopping worker"),
]
"""Every failpoint."""

DEAF = "before_heartbeat:sleep=4@2+"
"""For a worker with a lease of a second: it is taken for dead while it still works.

Each heartbeat is late: it takes the others longer than the first pause if their leader has just been killed.
"""


class Rounds:
    def __init__(self, fleet: Fleet, store: Store, rng: random.Random) -> None:
        self._fleet = fleet
        self._store = store
        self._rng = rng
        self._workers = [fleet.start_worker(), fleet.start_worker()]
        self._producer = self._new_producer()

    def kill_anyone(self) -> None:
        """At a random moment."""
        hands = [*self._workers, self._fleet.start_worker(), self._producer]
        goal = size_of(self._fleet.history) + self._rng.randint(1, 20_000)
        until(lambda: size_of(self._fleet.history) >= goal)
        victim = self._rng.choice(hands)
        victim.kill()
        if victim is self._producer:
            self._producer = self._new_producer()
            victim = self._rng.choice(hands[:3])
            victim.kill()
        self._workers = [hand for hand in hands[:3] if hand is not victim]

    def kill_at(self, stage: Stage) -> None:
        """Let it die at its failpoint. If the process does not reach it, the test fails."""
        failpoint = f"{stage.place}:kill@{self._rng.randint(1, stage.most)}"
        if stage.role == "producer":
            self._producer.kill()
            armed = self._new_producer(failpoint)
        else:
            armed = self._fleet.start_worker(failpoint)
        if stage.role == "stopping worker":
            until(armed.identities)
            armed.signal(signal.SIGTERM)
        elif stage.role == "sweeper":
            self._leave_alone()
        armed.expect(KILLED)
        assert stage.place in {note.place for note in armed.notes()}
        if stage.role == "producer":
            self._producer = self._new_producer()
        while len(self._workers) < 2:
            self._workers.append(self._fleet.start_worker())

    def deafen(self) -> None:
        """A worker loses its leases without knowing, continues under another name, and is then killed too."""
        deaf = self._fleet.start_worker(DEAF)
        until(lambda: len(deaf.identities()) > 1)
        deaf.kill()

    def _leave_alone(self) -> None:
        """The new one is to be the only one left, with something to rescue."""
        first, second = self._workers
        self._stop(first)
        until(lambda: self._caught_at_work(second))
        second.kill()
        self._workers = []

    def _stop(self, worker: Participant) -> None:
        """In order. One that is still starting would not know how: it must have registered before."""
        until(lambda: worker.name in live_workers(self._store))
        assert worker.stop() == 0, worker.log

    def _caught_at_work(self, hand: Participant) -> bool:
        hand.signal(signal.SIGSTOP)
        running = self._store.perform(browse.list_jobs, Filter(state="running"), n=1_000)
        if hand.identities() & {job.worker for job in running}:
            return True
        hand.signal(signal.SIGCONT)
        return False

    def _new_producer(self, failpoint: str = "") -> Participant:
        return self._fleet.start_producer(self._rng.getrandbits(32), failpoint)

    def end(self) -> None:
        """Nobody is left, one way or the other; others finish what they began."""
        self._fleet.enough.touch()
        self._producer.expect(0)
        self._stop(self._workers[0])
        self._workers[1].kill()


def live_workers(store: Store) -> set[str]:
    """By name: the workers that are alive, and those whose death was not noticed yet."""
    return {worker.name for worker in store.perform(worker_ops.list_workers)}
