"""Operations: generators that yield statements, receive their rows and return a value.

One operation is one transaction. A store may run it again from the start (after a deadlock, a lost connection, a failed
group commit), so code between two yields must have no side effects. To refuse, an operation raises an error, and the
store rolls back.

    @operation("read")
    def is_enabled(task: str) -> Op[bool]:
        rows = yield from ask("find_enabled", task=task)
        return bool(rows and rows[0][0])

If a statement changes rows and has no RETURNING, do not use its answer: depending on the driver, it is no rows or the
number of changed rows.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, ParamSpec, TypeAlias, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

Param: TypeAlias = str | int | float | bool | None
Row: TypeAlias = tuple[Any, ...]
Rows: TypeAlias = Sequence[Row]
Access: TypeAlias = Literal["read", "write"]
Priority: TypeAlias = Literal["normal", "urgent", "heartbeat"]
StoreKind: TypeAlias = Literal["embedded", "server"]


class Query(NamedTuple):
    """A named statement and its parameters. The store adds ``now``.

    ``only``: the kind of store that needs this statement. The other kind does not run it, and answers with no rows.
    """

    name: str
    params: Mapping[str, Param]
    only: StoreKind | None = None


class RoundTrip(NamedTuple):
    """Statements that are sent together. They run in this order, and no statement needs the rows of another.

    ``final``: the operation raises no error after this round trip, so COMMIT may be sent with it.
    ``wake``: topics to announce once the transaction is committed.
    """

    queries: Sequence[Query]
    final: bool = False
    wake: frozenset[str] = frozenset()

    def queries_for(self, kind: StoreKind) -> Sequence[Query]:
        """The statements that this kind of store runs."""
        return [query for query in self.queries if query.only in (None, kind)]

    def answers_of(self, kind: StoreKind, answers: Answers) -> Answers:
        """The answers in the order of ``queries``. A statement that was not run has no rows."""
        if len(answers) == len(self.queries):
            return answers
        rows = iter(answers)
        return [next(rows) if query.only in (None, kind) else () for query in self.queries]


Answers: TypeAlias = Sequence[Rows]
Op: TypeAlias = Generator[RoundTrip, Answers, T]


@dataclass(frozen=True, slots=True)
class Operation(Generic[P, T]):
    """An operation and how a store should treat it.

    ``access``: a "read" changes nothing.
    ``priority``: urgent operations (finishes, reports) overtake normal operations where writers queue. A heartbeat
    keeps a worker alive: it never queues behind an operation that may itself wait for a row lock.
    ``pipelined``: the operation may be sent before an earlier pipelined operation is answered
    (``Store.takes_another_cycle``).
    ``retries``: how often a store runs the operation again after the server refused it. None means: as long as that may
    help. The number is low if the caller can leave out the row that caused the refusal, and should get the error soon.
    """

    start: Callable[P, Op[T]]
    access: Access
    priority: Priority = "normal"
    pipelined: bool = False
    retries: int | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Op[T]:
        return self.start(*args, **kwargs)

    @property
    def name(self) -> str:
        return self.start.__name__


def operation(
    access: Access,
    *,
    priority: Priority = "normal",
    pipelined: bool = False,
    retries: int | None = None,
) -> Callable[[Callable[P, Op[T]]], Operation[P, T]]:
    """Turn a generator function into an operation."""

    def mark(start: Callable[P, Op[T]]) -> Operation[P, T]:
        return Operation(start, access, priority, pipelined, retries)

    return mark


def ask(name: str, /, **params: Param) -> Op[Rows]:
    """Run one statement."""
    (rows,) = yield RoundTrip((Query(name, params),))
    return rows


def ask_last(name: str, /, *, wake: frozenset[str] = frozenset(), **params: Param) -> Op[Rows]:
    """Run the last statement of an operation."""
    (rows,) = yield RoundTrip((Query(name, params),), final=True, wake=wake)
    return rows


def ask_all(*queries: Query, final: bool = False, wake: frozenset[str] = frozenset()) -> Op[Answers]:
    """Run several statements in one round trip."""
    return (yield RoundTrip(queries, final, wake))


def announce(wake: frozenset[str]) -> Op[None]:
    """Announce topics after the commit, without a statement.

    This is allowed after the final round trip, because the topics may depend on its rows.
    """
    if wake:
        yield RoundTrip((), wake=wake)
