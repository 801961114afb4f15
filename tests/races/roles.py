"""What the processes of a race do. Each opens the database for itself and keeps a journal."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from multiprocessing.synchronize import Barrier
from pathlib import Path

from perdure.app import App
from perdure.errors import IdempotencyConflict
from perdure.model.backoff import Backoff, dump_backoff
from perdure.model.job import SECOND, Lease, NewJob, TaskDefinition
from perdure.model.lifecycle import Failed, Outcome, Released, Snoozed, Succeeded
from perdure.ops import enqueue, tasks
from perdure.request.ids import new_id
from perdure.store.store import Store, open_store
from perdure.worker.operations import WorkerOperations
from tests.races.journal import Journal

TASK = "race"
LEASE = SECOND

DEFINITION = TaskDefinition(
    name=TASK,
    queue="default",
    priority=0,
    max_attempts=5,
    timeout=None,
    backoff=dump_backoff(Backoff(base=0.001, cap=0.01)),
    max_crashes=None,
)


def open_operations(url: str, seed: int = 0) -> WorkerOperations:
    """A killed process loses nothing that was written; only a crash of the machine would."""
    return WorkerOperations(open_store(url, synchronous="normal"), rng=random.Random(seed))


def prepare(url: str) -> WorkerOperations:
    """The database of a race, with its task."""
    operations = open_operations(url)
    operations.store.migrate()
    operations.store.perform(tasks.sync, [DEFINITION])
    return operations


def send(store: Store, n: int) -> list[str]:
    jobs = [NewJob(id=new_id(), task=TASK, payload="{}") for _ in range(n)]
    return [one.id for one in store.perform(enqueue.enqueue, jobs)]


def hire(operations: WorkerOperations, lease: int = 600 * SECOND) -> str:
    worker = new_id()
    operations.register(worker, name=TASK, lease=lease)
    return worker


def claim_until_empty(url: str, journals: Path, start: Barrier, seed: int) -> None:
    """Take, finish, and take in the same transaction, a few at a time."""
    operations, journal, rng = open_operations(url, seed), Journal(journals), random.Random(seed)
    worker = hire(operations)
    start.wait()
    jobs = operations.claim(worker, tasks=[TASK], n=rng.randint(1, 20))
    start.wait()  # no process continues before all have some
    while jobs:
        journal.note("claimed", [job.lease for job in jobs])
        outcomes = [Succeeded(job.lease) for job in jobs]
        finished, jobs = operations.cycle(worker, outcomes, tasks=[TASK], n=rng.randint(1, 20))
        journal.note("accepted", finished.accepted)


def live_dangerously(url: str, journals: Path, enough: Path, stop: Path, seed: int) -> None:
    """Enqueue, claim and finish, round after round, ready to die at any of them.

    What is claimed in one round is finished in the next. Now and then others are led to believe that this
    worker fell silent; it finds out when its jobs were taken away.
    """
    operations, journal, rng = open_operations(url, seed), Journal(journals), random.Random(seed)
    worker = hire(operations, LEASE)
    held: list[Outcome] = []
    while not stop.exists():
        if not operations.heartbeat(worker).live:
            worker = hire(operations, LEASE)
        if not enough.exists():
            journal.note("enqueued", send(operations.store, rng.randint(0, 3)))
        jobs = operations.claim(worker, tasks=[TASK], n=rng.randint(1, 5))
        journal.note("claimed", [job.lease for job in jobs])
        ended, held = held, [_some_end(job.lease, rng) for job in jobs]
        finished = operations.finish(ended)
        told = [(*outcome.lease, _kind(outcome)) for outcome in ended]
        journal.note("accepted", [one for one in told if Lease(*one[:2]) in finished.accepted])
        journal.note("refused", [one for one in told if Lease(*one[:2]) in finished.refused])
        if rng.random() < 0.2:
            operations.retire(worker)
        if not jobs:
            time.sleep(0.002)


def race_for_keys(url: str, journals: Path, start: Barrier, keys: Sequence[str], payload: int) -> None:
    """Ask for the keys that others ask for, at the same moment: as idempotency keys, then as unique ones."""
    app, journal = App(url, synchronous="normal"), Journal(journals)
    for key in keys:
        start.wait()
        try:
            job = app.enqueue(TASK, {"payload": payload}, idempotency_key=key)
        except IdempotencyConflict as conflict:
            journal.note("refused", (key, payload, conflict.field))
        else:
            journal.note("answered", (key, payload, job.id, job.created))
    for key in keys:
        start.wait()
        job = app.enqueue(TASK, {"payload": payload}, unique_key=key)
        journal.note("unique", (key, job.id, job.created))


def _some_end(lease: Lease, rng: random.Random) -> Outcome:
    chance = rng.random()
    if chance < 0.6:
        return Succeeded(lease, result=str(lease.token))
    if chance < 0.7:
        return Failed(lease, "fatal")
    if chance < 0.8:
        return Snoozed(lease, 1000)
    return Released(lease) if chance < 0.85 else Failed(lease, "error")


def _kind(outcome: Outcome) -> str:
    return outcome.kind if isinstance(outcome, Failed) else type(outcome).__name__.lower()
