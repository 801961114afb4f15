"""Refuse writes that would wait for a write lock of their own thread or task, held by another connection."""

from __future__ import annotations

import threading
from contextvars import ContextVar

from perdure.errors import Refused


class SelfLock:
    """Marks that this thread or task holds the write lock of the database at ``path``, until ``end``."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.where: object | None = _here()
        # Not reset by ``end``, which may run in another context: an ended lock refuses nothing.
        _last.set(self)

    def end(self) -> None:
        self.where = None


def refuse_if_self_locked(path: str) -> None:
    lock = _last.get()
    if lock is not None and lock.path == path and lock.where == _here():
        raise Refused(
            "ctx.transaction() holds SQLite's write lock, and this write would wait for it: "
            "leave the block first, or pass its connection as conn=.",
            code="store.self_locked",
        )


_last: ContextVar[SelfLock | None] = ContextVar("perdure_self_lock", default=None)


def _here() -> tuple[int, object]:
    """The current thread and task. The context is not enough: a task begun in the block inherits it, and may wait."""
    from asyncio import current_task

    try:
        return threading.get_ident(), current_task()
    except RuntimeError:
        return threading.get_ident(), None
