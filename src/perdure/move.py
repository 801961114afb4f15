"""Moving a whole store to another database: ``perdure move``, as a function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

from perdure.errors import InvalidConfig, PerdureError, Refused
from perdure.plan.plan import refuse_in_event_loop
from perdure.request.ids import new_id
from perdure.store.move import move as mover
from perdure.store.move.marks import refuse_kept
from perdure.store.move.move import Moved, Progress
from perdure.store.move.side import Side, open_side
from perdure.store.statements import DEFAULT_SCHEMA
from perdure.store.store import Store, open_store, without_driver

__all__ = ["Moved", "Progress", "abandon", "keep", "move"]

P = ParamSpec("P")
T = TypeVar("T")

PATIENCE, PATIENCE_AWAY = 30.0, 5.0
"""Seconds to wait where somebody else writes, and where nobody answers."""


def _without_driver_errors(function: Callable[P, T]) -> Callable[P, T]:
    """What a block translates is raised while the driver's error is handled, and would carry it, with a row in it."""

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except PerdureError as error:
            error.__context__ = None
            raise

    return wrapped


@_without_driver_errors
def move(
    source: str,
    target: str,
    *,
    schema: str = DEFAULT_SCHEMA,
    target_schema: str | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Moved | None:
    """Move all jobs, with everything that belongs to them, from one database to another, which must be empty.

    Both are URLs; ``schema`` is that of both where they are PostgreSQL, unless the target's is given. What was
    interrupted is called again, and goes on; None if it had been finished. Nothing is deleted from the source, and
    nothing writes to it any more.
    """
    refuse_in_event_loop("move", "use asyncio.to_thread(move, …)")
    target_schema = target_schema or schema
    source, target = without_driver(source), without_driver(target)
    _refuse_memory(source, target)
    with ExitStack() as stack:
        old = stack.enter_context(_open(source, schema))
        new = stack.enter_context(_open(target, target_schema))
        _check(old)
        new.migrate()
        here = stack.enter_context(open_side(old, source, schema, patience=PATIENCE))
        there = stack.enter_context(open_side(new, target, target_schema, patience=PATIENCE))
        return mover.move(here, there, id=new_id(), progress=progress)


@_without_driver_errors
def abandon(
    source: str, target: str | None = None, *, schema: str = DEFAULT_SCHEMA, target_schema: str | None = None
) -> bool:
    """Give up the move that is under way at these databases, and tell whether there was one.

    The source can be written to again, and then the target is emptied. One of them may be given alone, if the other is
    gone; but a target to which all has come is emptied only together with its source.
    """
    refuse_in_event_loop("abandon", "use asyncio.to_thread(abandon, …)")
    _refuse_memory(source, target or "")
    with ExitStack() as stack:
        here = stack.enter_context(_marked(source, schema))
        if target is None:
            return mover.abandon(here)
        there = stack.enter_context(_marked(target, target_schema or schema))
        refuse_kept(here, there)
        # In this order: once the source is open, what has arrived may go.
        given_up = mover.abandon(here)
        return mover.abandon(there, here) or given_up


@_without_driver_errors
def keep(target: str, *, schema: str = DEFAULT_SCHEMA) -> bool:
    """Open a target to which all has come and whose source is gone, and tell whether it was closed.

    Whoever has the source still calls ``move`` again instead: only that closes it.
    """
    refuse_in_event_loop("keep", "use asyncio.to_thread(keep, …)")
    _refuse_memory(target)
    with _marked(target, schema) as side:
        return mover.keep(side)


@contextmanager
def _marked(url: str, schema: str) -> Iterator[Side]:
    url = without_driver(url)
    with _open(url, schema) as store:
        _check(store)
        with open_side(store, url, schema, patience=PATIENCE) as side:
            yield side


def _open(url: str, schema: str) -> closing[Store]:
    return closing(open_store(url, schema=schema, patience=PATIENCE, patience_away=PATIENCE_AWAY))


def _refuse_memory(*urls: str) -> None:
    if "sqlite:///:memory:" in urls:
        raise InvalidConfig("A database in memory ends with its process: nothing can be moved.")


def _check(store: Store) -> None:
    try:
        store.check_schema()
    except Refused as error:
        # By a move: perhaps by this one.
        if error.code != "store.moved":
            raise
