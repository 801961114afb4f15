"""Refuse writes that would wait for a write lock that their own caller holds, on another connection.

Inside ``ctx.transaction()`` perdure knows who holds the lock, and refuses the write at once. If the program itself
began the transaction, perdure has to find out, once a write has waited for a second. Linux shows whether this process
holds the lock, and the garbage collector lists the connections of Python's sqlite3. If exactly one of these connections
is in a transaction, and only the caller can use that connection, then it holds the lock, and the write is refused. In
all other cases another thread may commit soon, and only a warning is logged.
"""

from __future__ import annotations

import gc
import logging
import os
import sqlite3
import threading
from collections.abc import Iterable
from contextvars import ContextVar
from time import monotonic

from perdure.errors import Refused

LOOK_AFTER = 1.0
"""Seconds that a write waits before it finds out who holds the lock."""

WARN_INTERVAL = 60.0
"""Seconds between two warnings of one process."""

# The byte of the -shm file that SQLite locks to write.
_WRITE_LOCK = 120

_log = logging.getLogger("perdure.store")


class SelfLock:
    """Marks that this thread or task holds the write lock of the database at ``path``, until ``end``."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.where: object | None = _here()
        # ``end`` may run in another context, so it cannot reset this variable. An ended lock refuses nothing.
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


def look_for_own_transaction(path: str, ours: Iterable[sqlite3.Connection]) -> None:
    """Raise Refused if a transaction of the caller certainly holds the lock. If that is only possible, log a warning.

    Call this in the thread, or on the event loop, that waits for the write. ``ours``: perdure's own connections.
    """
    if not _is_held_by_this_process(path) or any(_in_transaction(one) for one in ours):
        return
    known = {id(one) for one in ours}
    holders = [
        one
        for one in gc.get_objects()
        # isinstance() would make a lazy proxy create its object.
        if issubclass(type(one), sqlite3.Connection) and id(one) not in known and _in_transaction(one)
    ]
    if len(holders) == 1 and _only_task() and (_only_thread() or _is_bound_to_this_thread(holders[0])):
        raise Refused(
            "A transaction of your own holds SQLite's write lock, and this write would wait for it: "
            "give its connection as conn=, or commit it first.",
            code="store.self_locked",
        )
    _warn()


def _is_held_by_this_process(path: str) -> bool:
    """Whether this process holds the write lock, according to Linux's list of locks. Always False on other systems."""
    try:
        inode = str(os.stat(f"{path}-shm").st_ino)
        with open("/proc/locks", encoding="ascii", errors="replace") as locks:
            rows = [line.split() for line in locks]
    except OSError:
        return False
    # 1: POSIX ADVISORY WRITE <pid> <device>:<inode> <first byte> <last byte>
    return any(
        row[1:5] == ["POSIX", "ADVISORY", "WRITE", str(os.getpid())]
        and row[5].rpartition(":")[2] == inode
        and int(row[6]) <= _WRITE_LOCK
        and (row[7] == "EOF" or int(row[7]) >= _WRITE_LOCK)
        for row in rows
        if len(row) == 8
    )


def _in_transaction(connection: sqlite3.Connection) -> bool:
    try:
        return connection.in_transaction
    except sqlite3.Error:
        return False  # the connection is closed


def _only_task() -> bool:
    """Whether this thread has no event loop, or an event loop whose only task is the waiting task."""
    from asyncio import all_tasks

    try:
        return len(all_tasks()) <= 1
    except RuntimeError:
        return True


def _only_thread() -> bool:
    """Whether no other thread runs the program's code."""
    return all(
        thread is threading.current_thread() or thread.name.startswith("perdure-sqlite-")
        for thread in threading.enumerate()
    )


def _is_bound_to_this_thread(connection: sqlite3.Connection) -> bool:
    """Whether sqlite3 lets only this thread use the connection."""
    elsewhere: list[bool] = []
    other = threading.Thread(
        target=lambda: elsewhere.append(_is_usable(connection)), name="perdure-sqlite-look"
    )
    other.start()
    other.join()
    return _is_usable(connection) and not any(elsewhere)


def _is_usable(connection: sqlite3.Connection) -> bool:
    try:
        sqlite3.Connection.cursor(connection).close()
    except sqlite3.Error:
        return False
    return True


def _warn() -> None:
    global _warn_at
    if monotonic() < _warn_at:
        return
    _warn_at = monotonic() + WARN_INTERVAL
    _log.warning(
        "A write waits for SQLite's write lock, which a transaction of this program has held for a second. "
        "If the call stands in that transaction, give its connection as conn="
    )


_warn_at = 0.0
_last: ContextVar[SelfLock | None] = ContextVar("perdure_self_lock", default=None)


def _here() -> tuple[int, object]:
    """The current thread and task, to compare with the thread and task that took a lock.

    The context variable alone is not enough: a task that was started inside ``ctx.transaction()`` inherits it, although
    that task may safely wait for the lock.
    """
    from asyncio import current_task

    try:
        return threading.get_ident(), current_task()
    except RuntimeError:
        return threading.get_ident(), None
