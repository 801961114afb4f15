"""Whoever holds the write lock by a connection of their own would wait for themselves with any other write."""

from __future__ import annotations

import threading
from contextvars import ContextVar

from perdure.errors import Refused


class Hold:
    """The write lock of the database at ``path``, held from here, in this thread or task, until ``end``."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.where: object | None = _here()
        # Not reset at the end, which may come in another context: a hold that ended holds nobody up.
        _last.set(self)

    def end(self) -> None:
        self.where = None


def refuse_if_self_locked(path: str) -> None:
    hold = _last.get()
    if hold is not None and hold.path == path and hold.where == _here():
        raise Refused(
            "ctx.transaction() holds SQLite's write lock, and this write would wait for it: "
            "leave the block first, or give its connection as conn=.",
            code="store.held_here",
        )


_last: ContextVar[Hold | None] = ContextVar("perdure_hold", default=None)


def _here() -> tuple[int, object]:
    """Not the context alone: a task that begins in the block inherits it, and may well wait for the block's end."""
    from asyncio import current_task

    try:
        return threading.get_ident(), current_task()
    except RuntimeError:
        return threading.get_ident(), None
