"""Operations on the caller's own connection, inside the caller's own transaction.

They commit with it and vanish with it. Each runs in a savepoint, so that a refusal leaves the transaction
usable. Nothing here commits or rolls back what the caller began.

Each driver has a ``DriverAdapter`` in a small file: what state is a connection in, and how does it run a statement. An
object that holds a driver's connection, such as a session of SQLAlchemy or the connection of Django, has a ``Wrapper``:
it is opened, and the driver's connection inside is joined.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, ParamSpec, TypeAlias, TypeVar

from perdure.errors import UnsupportedConnection
from perdure.ops.op import Answers, Kind, Op, Operation, Param, Query, Rows, StoreKind
from perdure.store.statements import Dialect
from perdure.store.store import Store

if TYPE_CHECKING:
    import asyncio

P = ParamSpec("P")
T = TypeVar("T")

Colour: TypeAlias = Literal["blocking", "async"]

# By the package and the name of a class, or of one it derives from: where its adapter or wrapper stands. No driver is
# imported to find out.
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
    """A statement as the store spells it. On PostgreSQL, without parameters, it steers the transaction: no rows."""

    sql: str
    params: Mapping[str, Param]


class State(NamedTuple):
    """What a connection tells of itself.

    ``begin``: no transaction is open, and nobody but us begins one before the next statement.
    ``database``: the name of the one it leads to, if it knows.
    """

    begin: bool = False
    database: str | None = None


Batch: TypeAlias = Sequence[BoundStatement]


class Uninterruptible(tuple[BoundStatement, ...]):
    """A batch that always runs to its end: everything up to the savepoint, since an interrupt there would fail the
    caller's own transaction, and the statement that releases the savepoint, or rolls back to it.
    """


class Opening(NamedTuple):
    """The statements that begin a transaction, if we have to, and those that roll it back."""

    begin: Batch = ()
    undo: Batch = ()


JoinGenerator: TypeAlias = Generator[Batch, Answers, T]


@dataclass(frozen=True, slots=True)
class DialectJoin:
    """How a transaction is joined on one kind of database, whatever the driver.

    ``open_transaction`` refuses a connection to another database. ``notice`` announces topics when the caller commits.
    """

    dialect: Dialect
    open_transaction: Callable[[Store, Kind, State], JoinGenerator[Opening]]
    notice: Callable[[Store, frozenset[str]], Batch]


@dataclass(frozen=True, slots=True)
class DriverAdapter:
    """One driver's connections.

    ``look`` returns its ``State``, and refuses what cannot be joined: closed, busy, in autocommit mode with no
    transaction open. ``run`` returns the rows of each statement of a batch, as the store would. Both are coroutine
    functions in an async adapter.
    """

    dialect_join: DialectJoin
    colour: Colour
    look: Callable[[Any], Any]
    run: Callable[[Any, Batch], Any]
    translate: Callable[[BaseException], BaseException]


@dataclass(frozen=True, slots=True)
class Wrapper:
    """What holds a driver's connection. ``open`` has the transaction begun, as the next statement would."""

    colour: Colour
    open: Callable[[Any], Any]


def perform(
    conn: object, store: Store, operation: Operation[P, T], /, *args: P.args, **kwargs: P.kwargs
) -> T:
    if wrapper := _wrapper(conn, colour="blocking"):
        conn = wrapper.open(conn)
    adapter = _adapter(conn, store, colour="blocking")
    with closing(operation(*args, **kwargs)) as op, _alone(conn):
        run, generator = _join(conn, store, adapter, adapter.look(conn), operation.kind, op)
        reply = partial(next, generator)
        while True:
            try:
                batch = reply()
            except StopIteration as end:
                value: T = _told(store, *end.value)
                return value
            try:
                reply = partial(generator.send, run(batch) if batch else [])
            except BaseException as error:
                reply = partial(generator.throw, adapter.translate(error))


async def aperform(
    conn: object, store: Store, operation: Operation[P, T], /, *args: P.args, **kwargs: P.kwargs
) -> T:
    if wrapper := _wrapper(conn, colour="async"):
        conn = await wrapper.open(conn)
    adapter = _adapter(conn, store, colour="async")
    with closing(operation(*args, **kwargs)) as op, _alone(conn):
        run, generator = _join(conn, store, adapter, await adapter.look(conn), operation.kind, op)
        reply = partial(next, generator)
        while True:
            try:
                batch = reply()
            except StopIteration as end:
                value: T = _told(store, *end.value)
                return value
            try:
                reply = partial(generator.send, await _carry(run, batch) if batch else [])
            except BaseException as error:
                reply = partial(generator.throw, adapter.translate(error))


async def _carry(run: Callable[[Batch], Coroutine[Any, Any, list[Rows]]], batch: Batch) -> list[Rows]:
    """Run a batch in a task of its own: a driver that is interrupted twice leaves its connection in disorder.

    A cancel cancels that task and waits for its end. An uninterruptible batch is not canceled: the cancel is delivered
    when the caller waits for something else, unless it was withdrawn by then, as by a timeout that has ended.
    """
    import asyncio  # only here: blocking programs start without it

    work = asyncio.create_task(run(batch))
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
            work.exception()  # or it would be told as one that nobody asked for
        raise asyncio.CancelledError
    if canceled and (caller := asyncio.current_task()) is not None:
        asyncio.get_running_loop().call_soon(_cancel_again, caller)
    return work.result()


def _cancel_again(caller: asyncio.Task[Any]) -> None:
    if caller.cancelling():
        caller.uncancel()
        caller.cancel()


def wrong_colour(colour: Colour, verb: str) -> UnsupportedConnection:
    """An error that names the method to use with a connection of this colour."""
    sentences = {
        "async": f"The connection is async: await {verb}.",
        "blocking": f"The connection is blocking: call {verb}, from a thread of its own where an event loop runs "
        "(open, use and commit the connection inside one asyncio.to_thread).",
    }
    return UnsupportedConnection(sentences[colour], code="conn.wrong_colour")


_SAVEPOINT = BoundStatement("SAVEPOINT perdure", {})
_RELEASE = BoundStatement("RELEASE SAVEPOINT perdure", {})
_UNDO = (BoundStatement("ROLLBACK TO SAVEPOINT perdure", {}), _RELEASE)


def _wrapper(conn: object, *, colour: Colour) -> Wrapper | None:
    wrapper: Wrapper | None = _find(WRAPPERS, conn)
    if wrapper is not None:
        _refuse_colour(wrapper.colour, colour)
    return wrapper


def _adapter(conn: object, store: Store, *, colour: Colour) -> DriverAdapter:
    adapter: DriverAdapter | None = _find(ADAPTERS, conn)
    if adapter is None:
        package, name = _ancestry(conn)[0]
        raise UnsupportedConnection(f"perdure cannot join a transaction of {package}'s {name}.")
    dialect = adapter.dialect_join.dialect
    if dialect != store.dialect:
        names = {"sqlite": "SQLite", "postgres": "PostgreSQL"}
        raise UnsupportedConnection(
            f"The connection leads to {names[dialect]}, the jobs live in {names[store.dialect]}.",
            code="conn.other_database",
        )
    _refuse_colour(adapter.colour, colour)
    return adapter


def _find(table: _Table, conn: object) -> Any:
    for module, name in (table[known] for known in _ancestry(conn) if known in table):
        return getattr(import_module(f".{module}", __package__), name)
    return None


def _ancestry(conn: object) -> list[tuple[str, str]]:
    return [(cls.__module__.partition(".")[0], cls.__qualname__) for cls in type(conn).__mro__]


def _refuse_colour(colour: Colour, asked: Colour) -> None:
    twins = {"async": "the verb's twin that begins with an a", "blocking": "the verb without the leading a"}
    if colour != asked:
        raise wrong_colour(colour, twins[colour])


def _join(
    conn: object, store: Store, adapter: DriverAdapter, state: State, kind: Kind, op: Op[T]
) -> tuple[Callable[[Batch], Any], JoinGenerator[tuple[T, frozenset[str]]]]:
    dialect_join = adapter.dialect_join
    opening = dialect_join.open_transaction(store, kind, state)
    generator = _join_generator(op, opening, store, partial(dialect_join.notice, store), adapter.colour)
    return partial(adapter.run, conn), generator


_in_use: dict[int, object] = {}


@contextmanager
def _alone(conn: object) -> Iterator[None]:
    """One operation at a time: another's savepoint would lie inside of ours, and go with it, or take ours along."""
    mine = object()
    if _in_use.setdefault(id(conn), mine) is not mine:
        raise UnsupportedConnection("The connection is still busy with another call.", code="conn.busy")
    try:
        yield
    finally:
        del _in_use[id(conn)]


def _bind(store: Store, query: Query) -> BoundStatement:
    return BoundStatement(store.statements[query.name], {**query.params, "now": store.now()})


def _join_generator(
    op: Op[T],
    opening: JoinGenerator[Opening],
    store: Store,
    notice: Callable[[frozenset[str]], Batch],
    colour: Colour,
) -> JoinGenerator[tuple[T, frozenset[str]]]:
    """The operation between SAVEPOINT and RELEASE, in batches; an error thrown in undoes it and comes out."""
    begin, undo = yield from opening
    kind: StoreKind = "embedded" if store.embedded else "server"
    wake: frozenset[str] = frozenset()
    told: frozenset[str] = frozenset()
    begun = False
    try:
        try:
            trip = next(op)
            while True:
                wake |= trip.wake
                head = [] if begun else [*begin, _SAVEPOINT]
                bound = [_bind(store, query) for query in trip.queries_for(kind)]
                tail = notice(wake) if trip.final else []
                begun = True
                if head and colour == "async":
                    yield Uninterruptible(head)
                    head = []
                rows = yield [*head, *bound, *tail]
                told = wake if trip.final else told
                trip = op.send(trip.answers_of(kind, rows[len(head) : len(head) + len(bound)]))
        except StopIteration as end:
            value: T = end.value
            yield notice(wake - told)
    except BaseException:
        if begun:
            # The connection may be gone; the first error is the one that tells.
            with suppress(Exception):
                yield Uninterruptible(undo or _UNDO)
        raise
    # Alone: had it gone with what may fail or be given up halfway, nobody would know whether there is still a savepoint
    # to go back to. To go back to none fails, and with it the caller's transaction.
    if begun:
        yield Uninterruptible([_RELEASE])
    return value, wake


def _told(store: Store, value: T, wake: frozenset[str]) -> T:
    """Listeners in this process are told before the caller commits: they go on to look for a while."""
    store.announce(wake)
    return value
