"""Operations on the caller's own connection, inside the caller's own transaction.

They commit with it and vanish with it. Each runs in a savepoint, so that a refusal leaves the transaction
usable. Nothing here commits or rolls back what the caller began.

A driver is a ``Flavour``, one small file each: what state is a connection in, and how does it run a statement. What
an application knows by another name, a session of SQLAlchemy's or Django's connection, is a ``Wrapper``: it is
opened, and what is found inside is joined.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, ParamSpec, TypeAlias, TypeVar

from perdure.errors import UnsupportedConnection
from perdure.ops.op import Answers, Kind, Op, Operation, Param, Query, Rows
from perdure.store.statements import Dialect
from perdure.store.store import Store

if TYPE_CHECKING:
    import asyncio

P = ParamSpec("P")
T = TypeVar("T")

Colour: TypeAlias = Literal["blocking", "async"]

# By the package and the name of a class, or of one it derives from: where its flavour or wrapper stands. No driver is
# imported to find out.
_Table: TypeAlias = Mapping[tuple[str, str], tuple[str, str]]

FLAVOURS: _Table = {
    ("sqlite3", "Connection"): ("borrowed_sqlite3", "SQLITE3"),
    ("aiosqlite", "Connection"): ("borrowed_sqlite3", "AIOSQLITE"),
    ("psycopg", "Connection"): ("borrowed_psycopg", "PSYCOPG"),
    ("psycopg", "AsyncConnection"): ("borrowed_psycopg", "PSYCOPG_ASYNC"),
    ("psycopg2", "connection"): ("borrowed_psycopg2", "PSYCOPG2"),
    ("pg8000", "Connection"): ("borrowed_pg8000", "PG8000"),
    ("asyncpg", "Connection"): ("borrowed_asyncpg", "ASYNCPG"),
    ("asyncpg", "PoolConnectionProxy"): ("borrowed_asyncpg", "ASYNCPG"),
}

WRAPPERS: _Table = {
    ("sqlalchemy", "Connection"): ("borrowed_sqlalchemy", "CONNECTION"),
    ("sqlalchemy", "Session"): ("borrowed_sqlalchemy", "SESSION"),
    ("sqlalchemy", "scoped_session"): ("borrowed_sqlalchemy", "SESSION"),
    ("sqlalchemy", "AsyncConnection"): ("borrowed_sqlalchemy", "ASYNC_CONNECTION"),
    ("sqlalchemy", "AsyncSession"): ("borrowed_sqlalchemy", "ASYNC_SESSION"),
    ("sqlalchemy", "async_scoped_session"): ("borrowed_sqlalchemy", "ASYNC_SESSION"),
    ("django", "BaseDatabaseWrapper"): ("borrowed_django", "DJANGO"),
    ("django", "ConnectionProxy"): ("borrowed_django", "DJANGO"),
}


class Said(NamedTuple):
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


Batch: TypeAlias = Sequence[Said]


class Firm(tuple[Said, ...]):
    """A batch that is carried out to its end: all up to the savepoint, since an interrupt there would fail the caller's
    own transaction, and what keeps, or undoes, all behind it.
    """


class Opening(NamedTuple):
    """What begins a transaction, where that is ours to do, and what then undoes all of it."""

    begin: Batch = ()
    undo: Batch = ()


Talk: TypeAlias = Generator[Batch, Answers, T]


@dataclass(frozen=True, slots=True)
class Manners:
    """How a transaction is joined on one kind of database, whatever the driver.

    ``arrive`` refuses a connection to another database. ``notice`` announces topics when the caller commits.
    """

    dialect: Dialect
    arrive: Callable[[Store, Kind, State], Talk[Opening]]
    notice: Callable[[Store, frozenset[str]], Batch]


@dataclass(frozen=True, slots=True)
class Flavour:
    """One driver's connections.

    ``look`` refuses what cannot be joined: closed, busy, in autocommit mode with no transaction open. ``run`` returns
    the rows of each statement of a batch, as the store would; of an async flavour, an awaitable of them.
    """

    manners: Manners
    colour: Colour
    look: Callable[[Any], State]
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
    flavour = _flavour(conn, store, colour="blocking")
    with _joined(conn, store, flavour, operation.kind, operation(*args, **kwargs)) as (run, talk):
        reply = partial(next, talk)
        while True:
            try:
                batch = reply()
            except StopIteration as end:
                value: T = _told(store, *end.value)
                return value
            try:
                reply = partial(talk.send, run(batch) if batch else [])
            except BaseException as error:
                reply = partial(talk.throw, flavour.translate(error))


async def aperform(
    conn: object, store: Store, operation: Operation[P, T], /, *args: P.args, **kwargs: P.kwargs
) -> T:
    if wrapper := _wrapper(conn, colour="async"):
        conn = await wrapper.open(conn)
    flavour = _flavour(conn, store, colour="async")
    with _joined(conn, store, flavour, operation.kind, operation(*args, **kwargs)) as (run, talk):
        reply = partial(next, talk)
        while True:
            try:
                batch = reply()
            except StopIteration as end:
                value: T = _told(store, *end.value)
                return value
            try:
                reply = partial(talk.send, await _carry(run, batch) if batch else [])
            except BaseException as error:
                reply = partial(talk.throw, flavour.translate(error))


async def _carry(run: Callable[[Batch], Coroutine[Any, Any, list[Rows]]], batch: Batch) -> list[Rows]:
    """Run a batch in a task of its own: a driver that is interrupted twice leaves its connection in disorder.

    A cancel gives it up and waits for its end. One that is firm is not given up: the cancel comes when the caller waits
    for something else, unless whoever asked for it has taken it back by then, as a time-out does that is over.
    """
    import asyncio  # only here: blocking programs start without it

    work = asyncio.create_task(run(batch))
    canceled = False
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError:
            if not (canceled or isinstance(batch, Firm)):
                work.cancel()
            canceled = True
    if canceled and not isinstance(batch, Firm):
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
    """A refusal that names the verb to use with a connection of this colour."""
    sentences = {
        "async": f"The connection is async: await {verb}.",
        "blocking": f"The connection is blocking: call {verb}, from a thread of its own where an event loop runs "
        "(open, use and commit the connection inside one asyncio.to_thread).",
    }
    return UnsupportedConnection(sentences[colour], code="conn.wrong_colour")


_SAVEPOINT = Said("SAVEPOINT perdure", {})
_RELEASE = Said("RELEASE SAVEPOINT perdure", {})
_UNDO = (Said("ROLLBACK TO SAVEPOINT perdure", {}), _RELEASE)


def _wrapper(conn: object, *, colour: Colour) -> Wrapper | None:
    wrapper: Wrapper | None = _find(WRAPPERS, conn)
    if wrapper is not None:
        _refuse_colour(wrapper.colour, colour)
    return wrapper


def _flavour(conn: object, store: Store, *, colour: Colour) -> Flavour:
    flavour: Flavour | None = _find(FLAVOURS, conn)
    if flavour is None:
        package, name = _ancestry(conn)[0]
        raise UnsupportedConnection(f"perdure cannot join a transaction of {package}'s {name}.")
    dialect = flavour.manners.dialect
    if dialect != store.dialect:
        names = {"sqlite": "SQLite", "postgres": "PostgreSQL"}
        raise UnsupportedConnection(
            f"The connection leads to {names[dialect]}, the jobs live in {names[store.dialect]}.",
            code="conn.other_database",
        )
    _refuse_colour(flavour.colour, colour)
    return flavour


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


@contextmanager
def _joined(
    conn: object, store: Store, flavour: Flavour, kind: Kind, op: Op[T]
) -> Iterator[tuple[Callable[[Batch], Any], Talk[tuple[T, frozenset[str]]]]]:
    manners = flavour.manners
    with closing(op), _alone(conn):
        arrival = manners.arrive(store, kind, flavour.look(conn))
        talk = _talk(op, arrival, partial(_say, store), partial(manners.notice, store), flavour.colour)
        yield partial(flavour.run, conn), talk


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


def _say(store: Store, query: Query) -> Said:
    return Said(store.statements[query.name], {**query.params, "now": store.now()})


def _talk(
    op: Op[T],
    arrival: Talk[Opening],
    say: Callable[[Query], Said],
    notice: Callable[[frozenset[str]], Batch],
    colour: Colour,
) -> Talk[tuple[T, frozenset[str]]]:
    """The operation between SAVEPOINT and RELEASE, in batches; an error thrown in undoes it and comes out."""
    begin, undo = yield from arrival
    wake: frozenset[str] = frozenset()
    told: frozenset[str] = frozenset()
    begun = False
    try:
        try:
            step = next(op)
            while True:
                wake |= step.wake
                head = [] if begun else [*begin, _SAVEPOINT]
                said = [say(query) for query in step.queries]
                tail = notice(wake) if step.final else []
                begun = True
                if head and colour == "async":
                    yield Firm(head)
                    head = []
                rows = yield [*head, *said, *tail]
                told = wake if step.final else told
                step = op.send(rows[len(head) : len(head) + len(said)])
        except StopIteration as end:
            value: T = end.value
            yield notice(wake - told)
    except BaseException:
        if begun:
            # The connection may be gone; the first error is the one that tells.
            with suppress(Exception):
                yield Firm(undo or _UNDO)
        raise
    # Alone: had it gone with what may fail or be given up halfway, nobody would know whether there is still a savepoint
    # to go back to. To go back to none fails, and with it the caller's transaction.
    if begun:
        yield Firm([_RELEASE])
    return value, wake


def _told(store: Store, value: T, wake: frozenset[str]) -> T:
    """Listeners in this process are told before the caller commits: they go on to look for a while."""
    store.announce(wake)
    return value
