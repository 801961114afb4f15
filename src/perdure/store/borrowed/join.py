"""Operations on a caller's connection, inside the caller's transaction.

The operations commit or roll back together with that transaction. Each operation runs in a savepoint, so that a refusal
leaves the transaction usable. This module never commits or rolls back a transaction that the caller began.

Each driver has a ``DriverAdapter`` in a small file: how to read the state of a connection, and how to run a statement.
A session of SQLAlchemy and a connection of Django have a ``Wrapper``, which finds the driver's connection inside.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, ParamSpec, TypeAlias, TypeVar

from perdure.errors import UnsupportedConnection
from perdure.ops.op import Access, Answers, Op, Operation, Param, Query, RoundTrip, Rows, StoreKind
from perdure.store.drive import adrive, drive, drive_within
from perdure.store.statements import Dialect
from perdure.store.store import Store

if TYPE_CHECKING:
    import asyncio

P = ParamSpec("P")
T = TypeVar("T")

Mode: TypeAlias = Literal["sync", "async"]

# Maps the package and name of a connection's class, or of one of its bases, to the module and name of its adapter or
# wrapper. Classes are given by name, so that this module imports no driver.
_Table: TypeAlias = Mapping[tuple[str, str], tuple[str, str]]

ADAPTERS: _Table = {
    ("sqlite3", "Connection"): ("sqlite3", "SQLITE3"),
    ("aiosqlite", "Connection"): ("sqlite3", "AIOSQLITE"),
    ("psycopg", "Connection"): ("psycopg", "PSYCOPG"),
    ("psycopg", "AsyncConnection"): ("psycopg", "PSYCOPG_ASYNC"),
    ("psycopg2", "connection"): ("psycopg2", "PSYCOPG2"),
    ("pg8000", "Connection"): ("pg8000", "PG8000"),
    ("asyncpg", "Connection"): ("asyncpg", "ASYNCPG"),
    ("asyncpg", "PoolConnectionProxy"): ("asyncpg", "ASYNCPG"),
}

WRAPPERS: _Table = {
    ("sqlalchemy", "Connection"): ("sqlalchemy", "CONNECTION"),
    ("sqlalchemy", "Session"): ("sqlalchemy", "SESSION"),
    ("sqlalchemy", "scoped_session"): ("sqlalchemy", "SESSION"),
    ("sqlalchemy", "AsyncConnection"): ("sqlalchemy", "ASYNC_CONNECTION"),
    ("sqlalchemy", "AsyncSession"): ("sqlalchemy", "ASYNC_SESSION"),
    ("sqlalchemy", "async_scoped_session"): ("sqlalchemy", "ASYNC_SESSION"),
    ("django", "BaseDatabaseWrapper"): ("django", "DJANGO"),
    ("django", "ConnectionProxy"): ("django", "DJANGO"),
}


class BoundStatement(NamedTuple):
    """A statement, spelled as in ``Store.statements``, and its parameters.

    A PostgreSQL adapter need not return the rows of a statement without parameters, such as SAVEPOINT.
    """

    sql: str
    params: Mapping[str, Param]


class State(NamedTuple):
    """The state of a connection.

    ``begin``: whether we must begin a transaction, because no transaction is open and the driver will not begin one.
    ``database``: the name of the database, if the driver knows it.
    """

    begin: bool = False
    database: str | None = None


Batch: TypeAlias = Sequence[BoundStatement]


class Uninterruptible(tuple[BoundStatement, ...]):
    """A batch that always runs to its end, even if the caller is cancelled.

    The statements up to the savepoint are such a batch, and so is the end of the savepoint. An interruption there would
    fail the caller's transaction.
    """


class Opening(NamedTuple):
    """The statements that begin a transaction, if we must begin it, and the statements that roll it back."""

    begin: Batch = ()
    undo: Batch = ()


Batches: TypeAlias = Generator[Batch, Answers, T]
"""Yields batches for the caller's connection, and receives their rows. Private to store/borrowed/."""


@dataclass(frozen=True, slots=True)
class DialectJoin:
    """How to join a transaction on one kind of database, with any driver.

    ``open_transaction`` returns an ``Opening``, and refuses a connection to another database. ``notice`` returns the
    statements that announce topics when the caller commits.
    """

    dialect: Dialect
    open_transaction: Callable[[Store, Access, State], Batches[Opening]]
    notice: Callable[[Store, frozenset[str]], Batch]


@dataclass(frozen=True, slots=True)
class DriverAdapter:
    """How to use one driver's connections.

    ``look`` returns the ``State`` of a connection. It refuses a connection that is closed or busy, or that is in
    autocommit mode and has no open transaction. ``run`` returns the rows of each statement of a batch, as the store
    would. Both are coroutine functions in an async adapter.
    """

    dialect_join: DialectJoin
    mode: Mode
    look: Callable[[Any], Any]
    run: Callable[[Any, Batch], Any]
    translate: Callable[[BaseException], BaseException]


@dataclass(frozen=True, slots=True)
class Wrapper:
    """How to use an object that holds a driver's connection. ``open`` returns that connection.

    ``open`` also begins a transaction if the object would begin one with its next statement.
    """

    mode: Mode
    open: Callable[[Any], Any]


def perform(
    conn: object, store: Store, operation: Operation[P, T], /, *args: P.args, **kwargs: P.kwargs
) -> T:
    if wrapper := _wrapper(conn, mode="sync"):
        conn = wrapper.open(conn)
    adapter = _adapter(conn, store, mode="sync")

    def answer(batch: Batch) -> Answers:
        try:
            answers: Answers = adapter.run(conn, batch) if batch else []
            return answers
        except BaseException as error:
            failed = adapter.translate(error)
        raise failed  # outside the except block, so that its context is not the driver's error

    with _alone(conn):
        joined = _Joined(store, adapter)
        opening = adapter.dialect_join.open_transaction(store, operation.access, adapter.look(conn))
        value = drive(joined.run(operation(*args, **kwargs), opening), answer)
        store.announce(joined.wake)
        return value


async def aperform(
    conn: object, store: Store, operation: Operation[P, T], /, *args: P.args, **kwargs: P.kwargs
) -> T:
    if wrapper := _wrapper(conn, mode="async"):
        conn = await wrapper.open(conn)
    adapter = _adapter(conn, store, mode="async")

    async def answer(batch: Batch) -> Answers:
        try:
            return await _run_in_task(adapter.run(conn, batch), batch) if batch else []
        except BaseException as error:
            failed = adapter.translate(error)
        raise failed

    with _alone(conn):
        joined = _Joined(store, adapter)
        opening = adapter.dialect_join.open_transaction(store, operation.access, await adapter.look(conn))
        value = await adrive(joined.run(operation(*args, **kwargs), opening), answer)
        store.announce(joined.wake)
        return value


async def _run_in_task(run: Coroutine[Any, Any, list[Rows]], batch: Batch) -> list[Rows]:
    """Run a batch in a task of its own, and cancel that task at most once.

    A driver that is interrupted twice leaves its connection unusable. If the caller is canceled, cancel the task, wait
    for its end, and raise CancelledError.

    An uninterruptible batch is not canceled: it runs to its end, and its rows are returned. Only then is the caller
    canceled, at its next wait. It is not canceled if the cancellation was withdrawn by then, for example because a
    timeout block ended.
    """
    import asyncio  # imported here, because blocking programs never need it

    work = asyncio.create_task(run)
    canceled = False
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError:
            if not (canceled or isinstance(batch, Uninterruptible)):
                work.cancel()
            canceled = True
    if canceled and not isinstance(batch, Uninterruptible):
        if not work.cancelled():
            work.exception()  # otherwise asyncio logs that the exception was never retrieved
        raise asyncio.CancelledError
    if canceled and (caller := asyncio.current_task()) is not None:
        asyncio.get_running_loop().call_soon(_cancel_again, caller)
    return work.result()


def _cancel_again(caller: asyncio.Task[Any]) -> None:
    if caller.cancelling():
        caller.uncancel()
        caller.cancel()


def wrong_mode(mode: Mode, method: str) -> UnsupportedConnection:
    """The error for a connection of the other mode. It names the method to use with a sync or an async connection."""
    sentences = {
        "async": f"The connection is async: await {method}.",
        "sync": f"The connection is blocking: call {method}, in an async program from a thread "
        "(open, use and commit the connection inside one asyncio.to_thread).",
    }
    return UnsupportedConnection(sentences[mode], code="conn.wrong_mode")


_SAVEPOINT = BoundStatement("SAVEPOINT perdure", {})
_RELEASE = BoundStatement("RELEASE SAVEPOINT perdure", {})
_UNDO = (BoundStatement("ROLLBACK TO SAVEPOINT perdure", {}), _RELEASE)


def _wrapper(conn: object, *, mode: Mode) -> Wrapper | None:
    wrapper: Wrapper | None = _find(WRAPPERS, conn)
    if wrapper is not None:
        _refuse_mode(wrapper.mode, mode)
    return wrapper


def _adapter(conn: object, store: Store, *, mode: Mode) -> DriverAdapter:
    adapter: DriverAdapter | None = _find(ADAPTERS, conn)
    if adapter is None:
        package, name = _ancestry(conn)[0]
        raise UnsupportedConnection(f"perdure cannot join a transaction of {package}'s {name}.")
    dialect = adapter.dialect_join.dialect
    if dialect != store.dialect:
        names = {"sqlite": "SQLite", "postgres": "PostgreSQL"}
        raise UnsupportedConnection(
            f"The connection is to {names[dialect]}, but the jobs are in {names[store.dialect]}.",
            code="conn.other_database",
        )
    _refuse_mode(adapter.mode, mode)
    return adapter


def _find(table: _Table, conn: object) -> Any:
    for module, name in (table[known] for known in _ancestry(conn) if known in table):
        return getattr(import_module(f".{module}", __package__), name)
    return None


def _ancestry(conn: object) -> list[tuple[str, str]]:
    return [(cls.__module__.partition(".")[0], cls.__qualname__) for cls in type(conn).__mro__]


def _refuse_mode(mode: Mode, asked: Mode) -> None:
    methods = {"async": "the method whose name begins with a", "sync": "the method without the leading a"}
    if mode != asked:
        raise wrong_mode(mode, methods[mode])


_in_use: dict[int, object] = {}


@contextmanager
def _alone(conn: object) -> Iterator[None]:
    """Refuse a second operation at the same time on one connection: it would release the savepoint of the first."""
    mine = object()
    if _in_use.setdefault(id(conn), mine) is not mine:
        raise UnsupportedConnection("The connection is still busy with another call.", code="conn.busy")
    try:
        yield
    finally:
        del _in_use[id(conn)]


class _Joined:
    """Runs an operation between SAVEPOINT and RELEASE, in batches.

    ``wake`` holds the topics that the operation announced.
    """

    def __init__(self, store: Store, adapter: DriverAdapter) -> None:
        self._store = store
        self._adapter = adapter
        self._begun = False
        self._opening = Opening()
        self._announced: frozenset[str] = frozenset()
        self.wake: frozenset[str] = frozenset()

    def run(self, op: Op[T], opening: Batches[Opening]) -> Batches[T]:
        """Run the operation. An error thrown into this generator undoes the operation and is raised again."""
        self._opening = yield from opening
        try:
            value = yield from drive_within(op, self._answer)
            yield self._notice()
        except BaseException:
            if self._begun:
                # This fails if the connection is lost. Report the first error, not the error of the rollback.
                with suppress(Exception):
                    yield Uninterruptible(self._opening.undo or _UNDO)
            raise
        # RELEASE is a batch of its own. If a larger batch failed or was interrupted halfway, we would not know whether
        # the savepoint still exists. Rolling back to a savepoint that does not exist fails the caller's transaction.
        if self._begun:
            yield Uninterruptible([_RELEASE])
        return value

    def _answer(self, trip: RoundTrip) -> Batches[Answers]:
        self.wake |= trip.wake
        head = [] if self._begun else [*self._opening.begin, _SAVEPOINT]
        kind: StoreKind = "embedded" if self._store.embedded else "server"
        bound = [self._bind(query) for query in trip.queries_for(kind)]
        tail = self._notice() if trip.final else []
        self._begun = True
        if head and self._adapter.mode == "async":
            yield Uninterruptible(head)
            head = []
        rows = yield [*head, *bound, *tail]
        return trip.answers_of(kind, rows[len(head) : len(head) + len(bound)])

    def _bind(self, query: Query) -> BoundStatement:
        return BoundStatement(self._store.statements[query.name], {**query.params, "now": self._store.now()})

    def _notice(self) -> Batch:
        """A batch that announces the remaining topics when the caller commits."""
        topics, self._announced = self.wake - self._announced, self.wake
        return self._adapter.dialect_join.notice(self._store, topics)
