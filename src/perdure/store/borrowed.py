"""Operations on the caller's own connection, inside the caller's own transaction.

They commit with it and vanish with it. Each runs in a savepoint, so that a refusal leaves the transaction
usable. Nothing here commits or rolls back what the caller began.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Literal, NamedTuple, ParamSpec, TypeAlias, TypeVar

from perdure.errors import UnsupportedConnection
from perdure.ops.op import Kind, Op, Operation, Param, Query, Rows
from perdure.store.statements import Dialect
from perdure.store.store import Store

P = ParamSpec("P")
T = TypeVar("T")

Colour: TypeAlias = Literal["blocking", "async"]

# By the package and the name of a connection's class, or of one it derives from: where its flavour stands.
# No driver is imported to find out.
FLAVOURS: Mapping[tuple[str, str], tuple[str, str]] = {
    ("sqlite3", "Connection"): ("borrowed_sqlite3", "SQLITE3"),
    ("psycopg", "Connection"): ("borrowed_psycopg", "PSYCOPG"),
    ("psycopg", "AsyncConnection"): ("borrowed_psycopg", "PSYCOPG_ASYNC"),
}


class Said(NamedTuple):
    """A statement in its driver's spelling."""

    sql: str
    params: Mapping[str, Param]


Batch: TypeAlias = Sequence[Said]
# Returns the rows of each statement of a batch; of an async flavour, an awaitable of them.
Run: TypeAlias = Callable[[Batch], Any]


@dataclass(frozen=True, slots=True)
class Flavour:
    """How one kind of connection is joined.

    ``elsewhere`` tells a connection to another database. ``join`` refuses what cannot be joined, begins a
    transaction where the caller's next statement would have begun one, and yields what runs a batch.
    ``notice`` announces topics when the caller commits.
    """

    dialect: Dialect
    colour: Colour
    elsewhere: Callable[[Any, Store], bool]
    join: Callable[[Any, Kind], AbstractContextManager[Run]]
    notice: Callable[[Store, frozenset[str]], Batch]
    translate: Callable[[BaseException], BaseException]


def perform(
    conn: object, store: Store, operation: Operation[P, T], /, *args: P.args, **kwargs: P.kwargs
) -> T:
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
                reply = partial(talk.send, await run(batch) if batch else [])
            except BaseException as error:
                reply = partial(talk.throw, flavour.translate(error))


_Talk: TypeAlias = Generator[Batch, Sequence[Rows], tuple[T, frozenset[str]]]

_SAVEPOINT = Said("SAVEPOINT perdure", {})
_RELEASE = Said("RELEASE SAVEPOINT perdure", {})
_UNDO = (Said("ROLLBACK TO SAVEPOINT perdure", {}), _RELEASE)


def _flavour(conn: object, store: Store, *, colour: Colour) -> Flavour:
    ancestry = [(cls.__module__.partition(".")[0], cls.__qualname__) for cls in type(conn).__mro__]
    for module, name in (FLAVOURS[known] for known in ancestry if known in FLAVOURS):
        flavour: Flavour = getattr(import_module(f".{module}", __package__), name)
        _refuse_misfit(flavour, store, colour)
        return flavour
    package, name = ancestry[0]
    raise UnsupportedConnection(f"perdure cannot join a transaction of {package}'s {name}.")


def _refuse_misfit(flavour: Flavour, store: Store, colour: Colour) -> None:
    if flavour.dialect != store.dialect:
        names = {"sqlite": "SQLite", "postgres": "PostgreSQL"}
        raise UnsupportedConnection(
            f"The connection leads to {names[flavour.dialect]}, the jobs live in {names[store.dialect]}.",
            code="conn.other_database",
        )
    if flavour.colour != colour:
        twins = {
            "blocking": "The connection is async: await the verb's twin that begins with an a.",
            "async": "The connection is blocking: call the verb without the leading a, from a thread of its own "
            "where an event loop runs (open, use and commit the connection inside one asyncio.to_thread).",
        }
        raise UnsupportedConnection(twins[colour], code="conn.wrong_colour")


@contextmanager
def _joined(
    conn: object, store: Store, flavour: Flavour, kind: Kind, op: Op[T]
) -> Iterator[tuple[Run, _Talk[T]]]:
    with closing(op), flavour.join(conn, kind) as run:
        if flavour.elsewhere(conn, store):
            raise UnsupportedConnection(
                "The connection leads to another database than the app's.", code="conn.other_database"
            )
        yield run, _talk(op, partial(_say, store), partial(flavour.notice, store))


def _say(store: Store, query: Query) -> Said:
    return Said(store.statements[query.name], {**query.params, "now": store.now()})


def _talk(op: Op[T], say: Callable[[Query], Said], notice: Callable[[frozenset[str]], Batch]) -> _Talk[T]:
    """The operation between SAVEPOINT and RELEASE, in batches; an error thrown in undoes it and comes out."""
    begun = released = False
    wake: frozenset[str] = frozenset()
    told: frozenset[str] = frozenset()
    try:
        step = next(op)
        while True:
            wake |= step.wake
            head = [] if begun else [_SAVEPOINT]
            said = [say(query) for query in step.queries]
            tail = [_RELEASE, *notice(wake)] if step.final else []
            begun = True
            rows = yield [*head, *said, *tail]
            if step.final:
                released, told = True, wake
            step = op.send(rows[len(head) : len(head) + len(said)])
    except StopIteration as end:
        yield [*([_RELEASE] if begun and not released else []), *notice(wake - told)]
        return end.value, wake
    except BaseException:
        if begun and not released:
            # The connection may be gone; the first error is the one that tells.
            with suppress(Exception):
                yield _UNDO
        raise


def _told(store: Store, value: T, wake: frozenset[str]) -> T:
    """Listeners in this process are told before the caller commits: they go on to look for a while."""
    store.announce(wake)
    return value
