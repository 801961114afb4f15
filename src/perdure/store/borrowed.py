"""Operations on the caller's own connection, inside the caller's own transaction.

They commit with it and vanish with it. Each runs in a savepoint, so that a refusal leaves the transaction usable.
Nothing here begins, commits or rolls back what the caller began.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Literal, NamedTuple, ParamSpec, TypeAlias, TypeVar

from ..errors import UnsupportedConnection
from ..ops.op import Kind, Op, Operation, Param, Query, Rows
from .statements import Dialect
from .store import Store

P = ParamSpec("P")
T = TypeVar("T")

# By the package and the name of a connection's class, or of one that it derives from: where its flavour is written.
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

    ``join`` refuses a connection that cannot be joined, begins a transaction where the caller's next statement would
    have, and yields what runs a batch. ``notice`` announces topics at the caller's commit.
    """

    dialect: Dialect
    colour: Literal["blocking", "async"]
    join: Callable[[Any, Kind], AbstractContextManager[Run]]
    notice: Callable[[Store, frozenset[str]], Batch]
    translate: Callable[[BaseException], BaseException]


def perform(
    conn: object, store: Store, operation: Operation[P, T], /, *args: P.args, **kwargs: P.kwargs
) -> T:
    flavour = _flavour(conn, store, colour="blocking")
    with flavour.join(conn, operation.kind) as run, closing(operation(*args, **kwargs)) as op:
        talk = _talk(op, partial(_say, store), partial(flavour.notice, store))
        try:
            batch = next(talk)
            while True:
                failure, rows = None, None
                try:
                    rows = run(batch)
                except BaseException as error:
                    failure = flavour.translate(error)
                batch = talk.throw(failure) if failure else talk.send(rows)
        except StopIteration as end:
            value: T = end.value
            return value


async def aperform(
    conn: object, store: Store, operation: Operation[P, T], /, *args: P.args, **kwargs: P.kwargs
) -> T:
    flavour = _flavour(conn, store, colour="async")
    with flavour.join(conn, operation.kind) as run, closing(operation(*args, **kwargs)) as op:
        talk = _talk(op, partial(_say, store), partial(flavour.notice, store))
        try:
            batch = next(talk)
            while True:
                failure, rows = None, None
                try:
                    rows = await run(batch)
                except BaseException as error:
                    failure = flavour.translate(error)
                batch = talk.throw(failure) if failure else talk.send(rows)
        except StopIteration as end:
            value: T = end.value
            return value


_SAVEPOINT = Said("SAVEPOINT perdure", {})
_RELEASE = Said("RELEASE SAVEPOINT perdure", {})
_UNDO = (Said("ROLLBACK TO SAVEPOINT perdure", {}), _RELEASE)


def _flavour(conn: object, store: Store, *, colour: Literal["blocking", "async"]) -> Flavour:
    ancestry = [(cls.__module__.partition(".")[0], cls.__qualname__) for cls in type(conn).__mro__]
    for module, name in (FLAVOURS[known] for known in ancestry if known in FLAVOURS):
        flavour: Flavour = getattr(import_module(f".{module}", __package__), name)
        _refuse_misfit(flavour, store, colour)
        return flavour
    package, name = ancestry[0]
    raise UnsupportedConnection(f"perdure cannot join a transaction of {package}'s {name}.")


def _refuse_misfit(flavour: Flavour, store: Store, colour: Literal["blocking", "async"]) -> None:
    if flavour.dialect != store.dialect:
        names = {"sqlite": "SQLite", "postgres": "PostgreSQL"}
        raise UnsupportedConnection(
            f"The connection leads to {names[flavour.dialect]}, the jobs live in {names[store.dialect]}.",
            code="conn.other_database",
        )
    if flavour.colour != colour:
        twin = "await the verb that begins with a" if colour == "blocking" else "call the verb without its leading a"
        raise UnsupportedConnection(f"The connection is {flavour.colour}: {twin}.", code="conn.wrong_colour")


def _say(store: Store, query: Query) -> Said:
    return Said(store.statements[query.name], {**query.params, "now": store.now()})


def _talk(
    op: Op[T], say: Callable[[Query], Said], notice: Callable[[frozenset[str]], Batch]
) -> Generator[Batch, Sequence[Rows], T]:
    """The operation between SAVEPOINT and RELEASE, in batches; what is thrown in undoes it and comes out again."""
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
        value: T = end.value
        return value
    except BaseException:
        if begun and not released:
            # The connection may be gone; the first error is the one that tells.
            with suppress(Exception):
                yield _UNDO
        raise
