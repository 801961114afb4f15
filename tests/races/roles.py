"""What the processes of a race do. Each opens the database for itself and keeps a diary."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from multiprocessing.synchronize import Barrier
from pathlib import Path

from perdure.app import App
from perdure.errors import IdempotencyConflict
from perdure.ids import new_id
from perdure.model.backoff import Backoff, dump_backoff
from perdure.model.job import SECOND, Lease, NewJob, TaskDefinition
from perdure.model.lifecycle import Failed, Outcome, Released, Snoozed, Succeeded
from perdure.ops import enqueue, tasks
from perdure.store.store import Store, open_store
from perdure.worker.ledger import Ledger
from tests.races.diary import Diary

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


def open_ledger(url: str, seed: int = 0) -> Ledger:
    """A process that is killed loses nothing that was written; only the machine's end could take it."""
    return Ledger(open_store(url, synchronous="normal"), rng=random.Random(seed))


def prepare(url: str) -> Ledger:
    """The database of a race, with its task."""
    ledger = open_ledger(url)
    ledger.store.migrate()
    ledger.store.perform(tasks.sync, [DEFINITION])
    return ledger


def send(store: Store, n: int) -> list[str]:
    jobs = [NewJob(id=new_id(), task=TASK, payload="{}") for _ in range(n)]
    return [one.id for one in store.perform(enqueue.enqueue, jobs)]


def hire(ledger: Ledger, lease: int = 600 * SECOND) -> str:
    worker = new_id()
    ledger.register(worker, name=TASK, lease=lease)
    return worker


def claim_until_empty(url: str, diaries: Path, start: Barrier, seed: int) -> None:
    """Take, finish, and take in the same transaction, a few at a time."""
    ledger, diary, rng = open_ledger(url, seed), Diary(diaries), random.Random(seed)
    worker = hire(ledger)
    start.wait()
    jobs = ledger.claim(worker, tasks=[TASK], n=rng.randint(1, 20))
    while jobs:
        diary.note("claimed", [job.lease for job in jobs])
        outcomes = [Succeeded(job.lease) for job in jobs]
        finished, jobs = ledger.cycle(worker, outcomes, tasks=[TASK], n=rng.randint(1, 20))
        diary.note("accepted", finished.accepted)


def live_dangerously(url: str, diaries: Path, enough: Path, stop: Path, seed: int) -> None:
    """Enqueue, claim and finish, round after round, ready to die at any of them.

    What is claimed in one round is finished in the next. Now and then others are led to believe that this
    worker fell silent; it finds out when its jobs were taken away.
    """
    ledger, diary, rng = open_ledger(url, seed), Diary(diaries), random.Random(seed)
    worker = hire(ledger, LEASE)
    held: list[Outcome] = []
    while not stop.exists():
        if not ledger.heartbeat(worker).live:
            worker = hire(ledger, LEASE)
        if not enough.exists():
            diary.note("enqueued", send(ledger.store, rng.randint(0, 3)))
        jobs = ledger.claim(worker, tasks=[TASK], n=rng.randint(1, 5))
        diary.note("claimed", [job.lease for job in jobs])
        ended, held = held, [_some_end(job.lease, rng) for job in jobs]
        finished = ledger.finish(ended)
        told = [(*outcome.lease, _kind(outcome)) for outcome in ended]
        diary.note("accepted", [one for one in told if Lease(*one[:2]) in finished.accepted])
        diary.note("refused", [one for one in told if Lease(*one[:2]) in finished.refused])
        if rng.random() < 0.2:
            ledger.retire(worker)
        if not jobs:
            time.sleep(0.002)


def race_for_keys(url: str, diaries: Path, start: Barrier, keys: Sequence[str], payload: int) -> None:
    """Ask for the keys that others ask for, at the same moment: as idempotency keys, then as unique ones."""
    app, diary = App(url, synchronous="normal"), Diary(diaries)
    for key in keys:
        start.wait()
        try:
            job = app.enqueue(TASK, {"payload": payload}, idempotency_key=key)
        except IdempotencyConflict as conflict:
            diary.note("refused", (key, payload, conflict.field))
        else:
            diary.note("answered", (key, payload, job.id, job.created))
    for key in keys:
        start.wait()
        job = app.enqueue(TASK, {"payload": payload}, unique_key=key)
        diary.note("unique", (key, job.id, job.created))


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
