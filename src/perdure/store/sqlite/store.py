"""The SQLite store: one file, one writer at a time, concurrent readers."""

from __future__ import annotations

import math
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import ParamSpec, TypeVar
from weakref import finalize

from perdure.errors import StoreClosed, UnsupportedConnection, UnsupportedDatabase
from perdure.ops.op import Operation
from perdure.store.listeners import Listeners
from perdure.store.schema.files import Migration, migrations
from perdure.store.schema.script import script
from perdure.store.sqlite.connect import Database, Synchronous
from perdure.store.sqlite.errors import patiently, translate
from perdure.store.sqlite.file_stats import facts
from perdure.store.sqlite.liveness_locks import LivenessLocks
from perdure.store.sqlite.process_state import ProcessState
from perdure.store.sqlite.self_deadlock import SelfLock
from perdure.store.statements import Dialect, load
from perdure.store.store import Facts

P = ParamSpec("P")
T = TypeVar("T")


class SqliteStore:
    """A store in a local file, or in memory (``:memory:``). The file is opened at the first call.

    ``synchronous``: "full" keeps every commit through a power failure; "normal" is faster and may lose the last
    commits.
    """

    dialect: Dialect = "sqlite"
    embedded = True
    detects_dead_workers = True

    def __init__(
        self,
        path: str,
        *,
        synchronous: Synchronous = "full",
        patience: float | None = 30.0,
        clock: Callable[[], int] | None = None,
        statements: Mapping[str, str] | None = None,
        migrations: Sequence[Migration] | None = None,
    ) -> None:
        self._database = Database(path, synchronous=synchronous)
        self._patience = patience
        self._clock = clock or _host_clock
        self._given = statements
        self._migrations = migrations
        self._listeners = Listeners()
        self._liveness_locks = None if self._database.in_memory else LivenessLocks(self._database.path)
        self._closed = False
        # The keys are process ids. In a forked child, the state of its parent stays here, unused.
        self._process_states: dict[int, ProcessState] = {}

    @property
    def path(self) -> str:
        """The path of the file, with links resolved."""
        return self._database.path

    @property
    def address(self) -> str:
        return f"sqlite:///{self.path}"

    @property
    def patience(self) -> float | None:
        return self._patience

    @property
    def statements(self) -> Mapping[str, str]:
        """Every statement by name, for SQLite."""
        return load("sqlite") if self._given is None else self._given

    @property
    def migrations(self) -> Sequence[Migration]:
        """The migrations of this version, in order."""
        return migrations("sqlite") if self._migrations is None else self._migrations

    def now(self) -> int:
        """Microseconds since the epoch, by a test's clock or the host's clock."""
        return self._clock()

    def perform(self, operation: Operation[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._process_state.perform(operation, partial(operation.start, *args, **kwargs))

    def perform_at_once(self, operation: Operation[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._process_state.perform(operation, partial(operation.start, *args, **kwargs), patience=0)

    async def aperform(self, operation: Operation[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._process_state.aperform(operation, partial(operation.start, *args, **kwargs))

    @property
    def takes_another_cycle(self) -> bool:
        return False

    def migrate(self, *, to: int | None = None) -> list[int]:
        return self._process_state.migrate(to=to)

    def migration_sql(self, *, to: int | None = None) -> str:
        return script(self._process_state.pending(to=to), "sqlite")

    def check_schema(self) -> None:
        self._process_state.check_schema()

    def subscribe(self, listener: Callable[[frozenset[str]], None]) -> Callable[[], None]:
        return self._listeners.add(listener)

    def listen(self, listener: Callable[[frozenset[str]], None]) -> Callable[[], None]:
        ends = ExitStack()
        ends.callback(self._process_state.listen(listener))
        ends.callback(self._listeners.add(listener))
        return ends.close

    @property
    def hears_others(self) -> bool:
        return self._process_state.hears_others

    def use_worker_patience(self) -> None:
        # Nothing to change: only PostgresStore has a second, shorter patience, for a database that is away.
        pass

    def mark_self_locked(self) -> Callable[[], None]:
        return SelfLock(self.path).end

    def lock_liveness(self, worker: str) -> Callable[[], None]:
        return self._liveness_locks.lock_liveness(worker) if self._liveness_locks else _nothing

    def absent(self, workers: Iterable[str]) -> list[str]:
        return self._liveness_locks.absent(workers) if self._liveness_locks else []

    def announce(self, topics: frozenset[str]) -> None:
        """Notify the listeners of this process."""
        self._listeners.notify(topics)

    def connect(self) -> sqlite3.Connection:
        """A connection, inside a transaction, for the caller to use, commit and close."""
        if self._database.in_memory:
            raise UnsupportedConnection("A database in memory has one connection, which perdure itself uses.")
        until = time.monotonic() + (math.inf if self._patience is None else self._patience)
        database = self._database.anew()
        try:
            connection = patiently(database.open, until=until)
            patiently(lambda: connection.execute("BEGIN IMMEDIATE"), until=until)
        except sqlite3.Error as error:
            failed = translate(error)
        else:
            return connection
        raise failed  # outside the except block, so that its context is not SQLite's error

    async def aconnect(self) -> sqlite3.Connection:
        """Like ``connect``, for async code. If the caller is cancelled while it waits, no connection keeps the lock."""
        import asyncio

        got: list[sqlite3.Connection] = []
        wanted, lock = [True], threading.Lock()

        def connect() -> None:
            connection = self.connect()
            with lock:
                got.append(connection) if wanted else connection.close()

        try:
            await asyncio.to_thread(connect)
        except asyncio.CancelledError:
            with lock:
                wanted.clear()
            for connection in got:
                connection.close()
            raise
        return got[0]

    def facts(self) -> Facts:
        return facts(self._database, self._process_states.get(os.getpid()))

    def close(self) -> None:
        self._closed = True
        if state := self._process_states.get(os.getpid()):
            state.close()

    @property
    def _process_state(self) -> ProcessState:
        if self._closed:
            raise StoreClosed
        return self._process_states.get(os.getpid()) or self._begin_process_state()

    def _begin_process_state(self) -> ProcessState:
        here = os.getpid()
        if any(state.is_open for pid, state in list(self._process_states.items()) if pid != here):
            raise UnsupportedDatabase(
                "This process was forked while the SQLite database was in use, and cannot open it safely: "
                "fork before the first use, or start processes with spawn."
            )
        state = ProcessState(
            self._database.anew(),
            statements=self.statements,
            migrations=self.migrations,
            clock=self._clock,
            patience=self._patience,
            announce=self._listeners.notify,
        )
        chosen = self._process_states.setdefault(here, state)
        if chosen is state:
            finalize(self, state.abandon)
        return chosen


def _nothing() -> None:
    pass


def _host_clock() -> int:
    return time.time_ns() // 1000
