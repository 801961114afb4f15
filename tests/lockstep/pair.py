"""The two stores: every operation runs on both, and both must return the same."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, ParamSpec, TypeVar
from unittest.mock import patch

from perdure.errors import PerdureError
from perdure.model.backoff import load_backoff
from perdure.model.job import JobRow, Lease
from perdure.model.queue_settings import load_names, load_settings
from perdure.ops.op import Op, Operation, Query, ask_all, operation
from perdure.ops.worker import WorkerRow
from perdure.store.postgres.store import PostgresStore
from perdure.store.sqlite.store import SqliteStore
from perdure.store.statements import Dialect, load, render
from perdure.store.store import Store
from perdure.worker import claimer
from perdure.worker.operations import WorkerOperations
from tests.lockstep.endings import Past
from tests.lockstep.limits import NamedLimit
from tests.lockstep.model import Queue

P = ParamSpec("P")
T = TypeVar("T")

TABLES = (
    "job",
    "key",
    "attempt",
    "event",
    "log",
    "queue",
    "task",
    "named_limit",
    "limit_lock",
    "worker",
    "leader",
    "act",
)

OWN = {f"wipe_{table}": f"DELETE FROM perdure.{table}" for table in TABLES} | {
    "every_attempt": "SELECT job, token, run, attempt, kind, code, delay, decided_by FROM perdure.attempt",
    "every_event": "SELECT job, run, token, kind, at FROM perdure.event ORDER BY id",
}


class Seen(NamedTuple):
    """All a store holds that the model knows of."""

    jobs: dict[str, JobRow]
    attempts: dict[Lease, Past]
    events: list[tuple[Any, ...]]
    queues: dict[str, Queue]
    limits: dict[str, NamedLimit]
    workers: dict[str, int]
    counts: dict[tuple[str, str], int]


class FixedRandom(random.Random):
    """Always returns the value that the test has set."""

    START = 0.5
    value = START

    def random(self) -> float:
        return self.value


class Pair:
    """Both stores on one clock and one random number."""

    def __init__(self, stores: list[Store], clock: Clock) -> None:
        self.clock = clock
        self.rng = FixedRandom()
        self.both = self._begin_both(stores)
        self.woken: frozenset[str] = frozenset()
        """The topics announced since it was last cleared."""
        self._heard: list[frozenset[str]] = [frozenset()] * len(stores)
        for i, store in enumerate(stores):
            store.subscribe(self._listener(i))

    def ask(self, verb: Callable[[WorkerOperations], T]) -> T:
        """Ask both. If both raise the same error, raise it."""
        self._heard = [frozenset()] * len(self.both)
        sqlite, postgres = [_answer(verb, operations) for operations in self.both]
        assert repr(sqlite) == repr(postgres), f"SQLite: {sqlite!r}\nPostgreSQL: {postgres!r}"
        assert self._heard[0] == self._heard[1]
        self.woken |= self._heard[0]
        if isinstance(sqlite, PerdureError):
            raise sqlite
        return sqlite

    def perform(self, operation: Operation[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self.ask(lambda operations: operations.store.perform(operation, *args, **kwargs))

    def look(self) -> Seen:
        """The stored rows, which must be the same on both."""
        sqlite, postgres = [operations.store.perform(look) for operations in self.both]
        assert sqlite == postgres
        return sqlite

    def begin(self) -> None:
        """Forget everything."""
        stores = [operations.store for operations in self.both]
        for store in stores:
            store.perform(wipe)
        self.both = self._begin_both(stores)
        self.clock.now, self.rng.value, self.woken = Clock.START, FixedRandom.START, frozenset()

    def _begin_both(self, stores: list[Store]) -> list[WorkerOperations]:
        """New ones for each example: a ledger remembers what its last claims found."""
        return [WorkerOperations(store, rng=self.rng) for store in stores]

    def _listener(self, i: int) -> Callable[[frozenset[str]], None]:
        def listen(topics: frozenset[str]) -> None:
            self._heard[i] |= topics

        return listen


class Clock:
    """Microseconds since the epoch, wherever the test puts them."""

    START = 1_700_000_000_000_000

    def __init__(self) -> None:
        self.now = self.START

    def __call__(self) -> int:
        return self.now


@contextmanager
def open_pair(sqlite_path: str, postgres_url: str) -> Iterator[Pair]:
    clock = Clock()
    # Nothing here needs to survive a power cut.
    sqlite = SqliteStore(sqlite_path, synchronous="normal", clock=clock, statements=_statements("sqlite"))
    postgres = PostgresStore(postgres_url, clock=clock, statements=_statements("postgres"))
    postgres.migrate()
    try:
        yield Pair([sqlite, postgres], clock)
    finally:
        sqlite.close()
        postgres.close()


@operation("read")
def look() -> Op[Seen]:
    jobs, counts, attempts, events, queues, limits, workers = yield from ask_all(
        Query("every_job", {}),
        Query("count_jobs", {"queue": None, "tenant": None}),
        *(Query(name, {}) for name in ("every_attempt", "every_event", "list_queues", "list_named_limits")),
        Query("list_workers", {}),
        final=True,
    )
    return Seen(
        jobs={row[0]: JobRow(*row) for row in jobs},
        attempts={Lease(job, token): Past(*past) for job, token, *past in attempts},
        events=[tuple(row) for row in events],
        queues={
            row[0]: replace(
                Queue(*row[1:]),
                paused=bool(row[1]),
                backoff=row[4] and load_backoff(row[4]),
                declared=load_settings(row[-2]),
                edited=load_names(row[-1]),
            )
            for row in queues
        },
        limits={name: NamedLimit(most, declared, bool(edited)) for name, most, declared, edited in limits},
        workers={row.id: row.expires_at for row in itertools.starmap(WorkerRow, workers)},
        counts={(queue, view): number for queue, view, number in counts},
    )


@operation("write")
def wipe() -> Op[None]:
    yield from ask_all(*(Query(f"wipe_{table}", {}) for table in TABLES), final=True)


def _answer(verb: Callable[[WorkerOperations], T], operations: WorkerOperations) -> T | PerdureError:
    # With intervals, the real time that has passed would decide whether a claim searches for limited jobs first.
    with patch.multiple(claimer, SEARCH_INTERVAL=0.0, CHECK_INTERVAL=0.0):
        try:
            return verb(operations)
        except PerdureError as error:
            return error


def _statements(dialect: Dialect) -> dict[str, str]:
    known = load(dialect)
    every = {"every_job": known["read_jobs"].partition("WHERE")[0]}
    return {**known, **every, **{name: render(text, dialect) for name, text in OWN.items()}}
