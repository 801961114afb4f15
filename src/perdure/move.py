"""Move all jobs to another database: the functions behind ``perdure move``."""

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
"""Seconds to retry while a database is busy, and while it cannot be reached."""


def _without_driver_errors(function: Callable[P, T]) -> Callable[P, T]:
    """Drop the ``__context__`` of a PerdureError. The context is the driver's error, which may contain a row."""

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
    """Move all jobs, with their history, keys, queues, tasks and workflows, to another database, which must be empty.

    ``source`` and ``target`` are URLs. ``schema`` is the PostgreSQL schema of both databases, unless ``target_schema``
    is given. To continue an interrupted move, call this again. It returns None if the move was already finished.
    Nothing is deleted from the source, but nothing can write to it any more.
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
    """Give up the unfinished move between these databases; return whether there was such a move.

    The source becomes writable again, then the target is emptied. If one database is gone, give only the other, as
    ``source``. A target that has received all rows is emptied only if its source is given as well.
    """
    refuse_in_event_loop("abandon", "use asyncio.to_thread(abandon, …)")
    _refuse_memory(source, target or "")
    with ExitStack() as stack:
        here = stack.enter_context(_marked(source, schema))
        if target is None:
            return mover.abandon(here)
        there = stack.enter_context(_marked(target, target_schema or schema))
        refuse_kept(here, there)
        # The source comes first: rows may be deleted from the target only once the source is writable again.
        given_up = mover.abandon(here)
        return mover.abandon(there, here) or given_up


@_without_driver_errors
def keep(target: str, *, schema: str = DEFAULT_SCHEMA) -> bool:
    """Make a target writable that has received all rows and whose source is gone.

    If the source still exists, call ``move`` again instead: only ``move`` closes the source to writes. Returns False
    if no move was under way.
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
        raise InvalidConfig("A database in memory cannot be moved: it ends with its process.")


def _check(store: Store) -> None:
    try:
        store.check_schema()
    except Refused as error:
        # A move has closed this database to writes. It may be the move that is continued or given up here.
        if error.code != "store.moved":
            raise
