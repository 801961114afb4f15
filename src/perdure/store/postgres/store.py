"""The PostgreSQL store: runs operations on a small pool of connections, and retries them where that helps."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from hashlib import sha256
from typing import Any, Final, ParamSpec, TypeVar
from weakref import finalize

import psycopg

from perdure.errors import InvalidConfig
from perdure.internal.instances import WeakRegistry
from perdure.internal.lazy import lazy
from perdure.internal.threads import DaemonThreads
from perdure.model.codec import UNSTORABLE
from perdure.ops.notify import notify
from perdure.ops.op import Operation
from perdure.ops.topics import ANYTHING
from perdure.store.listener_thread import ListenerThread
from perdure.store.listeners import Listeners
from perdure.store.postgres.adapt import Statement
from perdure.store.postgres.connect import connect, connect_async
from perdure.store.postgres.errors import diagnose
from perdure.store.postgres.listener import ANSWER_SECONDS, PostgresListener
from perdure.store.postgres.loop_io import LoopIO
from perdure.store.postgres.migrate import target
from perdure.store.postgres.pool import Pool, limits
from perdure.store.postgres.pool_stats import facts
from perdure.store.postgres.retry import Retrier
from perdure.store.postgres.rights import name_missing_right
from perdure.store.postgres.session import Session, SocketWaits
from perdure.store.postgres.transaction import TooLong, Transaction
from perdure.store.postgres.url import parse_url, servers, shown
from perdure.store.schema import migrate
from perdure.store.schema.files import Migration, migrations
from perdure.store.schema.pending import Work
from perdure.store.schema.script import script
from perdure.store.statements import DEFAULT_SCHEMA, Dialect, load
from perdure.store.store import Facts

P = ParamSpec("P")
T = TypeVar("T")

# PostgreSQL truncates longer names, so the names of two schemas could become equal.
_LONGEST_NAME: Final = 63


class PostgresStore:
    """A store on PostgreSQL 14 or newer, directly or behind a pooler.

    ``size``: how many connections ordinary operations may use at a time. The same number of threads serves async
    callers, from any number of event loops. If a caller is cancelled, an operation that has begun runs to its end, but
    is not tried again.

    ``prepare``: whether to prepare statements on the server. None means: only on connections without a pooler.

    ``listen_url``: where to LISTEN, if ``url`` leads to a pooler.
    """

    dialect: Dialect = "postgres"
    embedded = False
    detects_dead_workers = False

    def __init__(
        self,
        url: str,
        *,
        schema: str = DEFAULT_SCHEMA,
        prepare: bool | None = None,
        patience: float | None = 30.0,
        patience_away: float | None = None,
        clock: Callable[[], int] | None = None,
        statements: Mapping[str, str] | None = None,
        migrations: Sequence[Migration] | None = None,
        size: int = 10,
        listen_url: str | None = None,
    ) -> None:
        if not 0 < len(schema.encode(errors="replace")) <= _LONGEST_NAME or UNSTORABLE.search(schema):
            raise InvalidConfig(
                f"A schema's name must have 1 to {_LONGEST_NAME} bytes, without NUL and lone surrogates."
            )
        if size < 1:
            raise InvalidConfig("A pool needs at least one connection.")
        self._url = url
        self._clock = clock
        self._given = statements
        self._migrations = migrations
        self._size = size
        self._listeners = Listeners()
        self._pool = Pool(url, prepare=prepare, size=size)
        self._loop_io = LoopIO(self._pool)
        self._retrier = Retrier(
            patience,
            drop_connections=self._pool.drop_idle,
            patience_away=patience_away,
            server=partial(servers, url),
            forbidden=lambda error: name_missing_right(error, url, schema),
        )
        self.schema = schema
        self._listener_thread = PostgresListener(
            listen_url or url, self.channel, announce=partial(_announce_anything, self._pool)
        )
        self._start_threads()
        _stores.add(self)

    @property
    def address(self) -> str:
        schema = "" if self.schema == DEFAULT_SCHEMA else f", schema {self.schema}"
        return f"postgresql://{servers(self._url)}/{shown(self.database)}{schema}"

    @property
    def patience(self) -> float | None:
        return self._retrier.patience

    @property
    def statements(self) -> Mapping[str, str]:
        """Every statement by name, with psycopg's parameters."""
        return load("postgres", self.schema) if self._given is None else self._given

    @property
    def migrations(self) -> Sequence[Migration]:
        """The migrations of this version, in order."""
        return migrations("postgres") if self._migrations is None else self._migrations

    @lazy
    def channel(self) -> str:
        """The channel on which topics are announced."""
        if self.schema == DEFAULT_SCHEMA:
            return "perdure"
        return f"perdure_{sha256(self.schema.encode()).hexdigest()[:16]}"

    @lazy
    def database(self) -> str | None:
        """The database's name, if the URL has one."""
        name = parse_url(self._url).get("dbname")
        return None if name is None else str(name)

    def now(self) -> int | None:
        """The time of a test's clock; None means the server's clock."""
        return self._clock() if self._clock else None

    def perform(self, operation: Operation[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._retrier.until_done(
            lambda: self._run(operation, *args, **kwargs),
            urgent=operation.priority == "urgent",
            retries=operation.retries,
        )

    def perform_at_once(self, operation: Operation[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        # PostgreSQL has no write lock on the whole database.
        return self.perform(operation, *args, **kwargs)

    async def aperform(self, operation: Operation[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        self._retrier.refuse_if_stopped()

        def run(session: Session, *, at_once: bool = True) -> SocketWaits[T]:
            return self._perform(session, operation, args, kwargs, at_once=at_once)

        failed: psycopg.Error | None = None
        try:
            if (future := self._loop_io.start(operation, run)) is not None:
                value = await future
                self._retrier.note_success()
                return value
        except TooLong:
            pass
        except psycopg.Error as error:
            failed = error
        return await self._aperform_in_thread(
            operation, partial(self._run, operation, *args, **kwargs), failed
        )

    @property
    def takes_another_cycle(self) -> bool:
        return self._loop_io.takes_another_cycle

    async def _aperform_in_thread(
        self, operation: Operation[..., T], run: Callable[[], T], failed: psycopg.Error | None
    ) -> T:
        """Perform the operation in a thread: it may wait for a connection, between two tries, or with row locks held.

        ``failed``: the error of a first try that the event loop made.
        """
        outcome: Future[T] = Future()
        until_done = partial(
            self._retrier.until_done,
            run,
            urgent=operation.priority == "urgent",
            retries=operation.retries,
            failed=failed,
        )
        answer = asyncio.wrap_future(outcome)

        def wanted() -> bool:
            return not answer.cancelled()

        def work() -> None:
            if outcome.set_running_or_notify_cancel():
                try:
                    outcome.set_result(until_done(wanted=wanted))
                except BaseException as error:
                    outcome.set_exception(error)

        self._threads[operation.priority].submit(work)
        return await answer

    def migrate(self, *, to: int | None = None) -> list[int]:
        applied: list[int] = []
        self._retrier.until_done(lambda: self._migrate(applied, to=to))
        return applied

    def migration_sql(self, *, to: int | None = None) -> str:
        return script(self._retrier.until_done(lambda: self._pending(to)), "postgres", self.schema)

    def check_schema(self) -> None:
        self._retrier.until_done(self._check)

    def subscribe(self, listener: Callable[[frozenset[str]], None]) -> Callable[[], None]:
        return self._listeners.add(listener)

    def listen(self, listener: Callable[[frozenset[str]], None]) -> Callable[[], None]:
        self._retrier.refuse_if_stopped()
        ends = ExitStack()
        ends.callback(self._listener_thread.add(listener))
        ends.callback(self._listeners.add(listener))
        return ends.close

    def use_worker_patience(self) -> None:
        self._retrier.use_worker_patience()

    @property
    def hears_others(self) -> bool:
        return self._listener_thread.hears

    def mark_self_locked(self) -> Callable[[], None]:
        # A transaction locks only its rows: other writes do not wait for it.
        return lambda: None

    def lock_liveness(self, worker: str) -> Callable[[], None]:
        # A worker may be on any host: only its lease shows that it is alive.
        return lambda: None

    def absent(self, workers: Iterable[str]) -> list[str]:
        return []

    def announce(self, topics: frozenset[str]) -> None:
        """Notify the listeners of this process."""
        self._listeners.notify(topics)

    def connect(self) -> psycopg.Connection[Any]:
        """A connection for the caller to use, commit and close. The connection begins transactions by itself."""
        connection = self._retrier.until_done(lambda: connect(self._url))
        connection.autocommit = False
        return connection

    async def aconnect(self) -> psycopg.AsyncConnection[Any]:
        """Like ``connect``, for async code, but without retries."""
        try:
            return await connect_async(self._url)
        except psycopg.Error as error:
            failed = self._retrier.error_for(diagnose(error))
        raise failed  # outside the except block, so that its context is not the driver's error

    def facts(self) -> Facts:
        return facts(self._pool)

    def close(self) -> None:
        self._retrier.stop()
        self._listener_thread.stop()
        self._loop_io.clear()
        self._pool.close()
        self._stop_threads()

    def _run(self, operation: Operation[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        self._loop_io.clear()
        with self._pool.lend(operation.priority, timeout=self.patience) as session:
            return session.wait_for(self._perform(session, operation, args, kwargs))

    def _perform(
        self,
        session: Session,
        operation: Operation[..., T],
        args: Sequence[object],
        kwargs: Mapping[str, object],
        *,
        at_once: bool = False,
    ) -> SocketWaits[T]:
        transaction = Transaction(
            session,
            self._parsed,
            access=operation.access,
            priority=operation.priority,
            now=self.now(),
            channel=self.channel,
            at_once=at_once,
        )
        value = yield from transaction.run(operation(*args, **kwargs))
        self.announce(transaction.wake)
        return value

    @lazy
    def _parsed(self) -> Mapping[str, Statement]:
        return {name: Statement.parse(text) for name, text in self.statements.items()}

    def _migrate(self, applied: list[int], *, to: int | None) -> None:
        try:
            with target(self._url, self.schema) as database:
                # Note each version at once: if the connection is lost later, the caller still learns what was applied.
                for version in migrate.apply(database, self.migrations, to=to):
                    applied.append(version)
        except psycopg.IntegrityError as error:
            # Existing rows violate a constraint of the migration: another try would fail too.
            failed = diagnose(error).error.noting(error)
        else:
            return
        raise failed

    def _pending(self, to: int | None) -> list[Work]:
        with target(self._url, self.schema) as database:
            return migrate.look(database, self.migrations, to=to)

    def _check(self) -> None:
        with target(self._url, self.schema) as database:
            migrate.check(database, self.migrations)

    def _start_threads(self) -> None:
        self._threads = {
            priority: DaemonThreads(f"perdure-postgres-{priority}", limit=n)
            for priority, n in limits(self._size).items()
        }
        # This is for a store that is never closed. Without it, the idle threads would outlive the store.
        self._stop_threads = finalize(self, _stop_all, self._listener_thread, *self._threads.values())
        self._stop_threads.atexit = False

    def _after_fork(self) -> None:
        self._stop_threads.detach()
        self._pool.forget()
        self._loop_io.forget()
        self._retrier.forget()
        self._listener_thread.forget()
        self._start_threads()


_stores: WeakRegistry[PostgresStore] = WeakRegistry()


def _announce_anything(pool: Pool, channel: str) -> None:
    with pool.lend("normal", timeout=ANSWER_SECONDS) as session:
        transaction = Transaction(session, {}, access="write", priority="normal", now=None, channel=channel)
        session.wait_for(transaction.run(notify(frozenset([ANYTHING]))))


def _stop_all(*threads: DaemonThreads | ListenerThread) -> None:
    for group in threads:
        group.stop(wait=False)


def _after_fork() -> None:
    for store in _stores.now():
        store._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
