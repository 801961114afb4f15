"""Forks: close all SQLite connections before this process forks.

SQLite keeps a table of its locks in memory, and a fork copies that table. If the child opens the same file, SQLite
believes that the child holds the parent's locks. The child then takes no locks of its own, so the parent may delete
the WAL that the child uses. If the parent was writing, the child finds the file locked for ever (seen with 3.40 and
3.53). So before a fork we wait for running calls and close all connections. Parent and child each open the file again
at their next call.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection
from contextlib import suppress
from typing import Protocol

from perdure.internal.instances import WeakRegistry

# How many seconds a fork waits for running calls. A write takes milliseconds. If a read takes longer than this, the
# child refuses to use the store.
_PATIENCE = 10.0


class Pausable(Protocol):
    def pause(self, *, timeout: float) -> bool:
        """Close every connection, and open no connection until ``resume``.

        If that takes too long, undo it and return False.
        """
        ...

    def resume(self) -> None: ...


def close_before_forks(state: Pausable) -> None:
    with _one_fork_at_a_time:
        _process_states.add(state)


def keep_for_ever(inherited: Collection[object]) -> None:
    """Never finalize connections that a forked child inherited, because closing one might block for ever.

    During the fork, a thread of the parent may have held a connection's mutex. In the child, nobody releases it.
    """
    if not inherited:
        return
    with suppress(ImportError):
        import ctypes

        for connection in inherited:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


_process_states: WeakRegistry[Pausable] = WeakRegistry()
_paused: list[Pausable] = []
_one_fork_at_a_time = threading.Lock()


def _before() -> None:
    _one_fork_at_a_time.acquire()
    _paused.extend(state for state in _process_states.now() if state.pause(timeout=_PATIENCE))


def _after_in_parent() -> None:
    for state in _paused:
        state.resume()
    _paused.clear()
    _one_fork_at_a_time.release()


def _after_in_child() -> None:
    global _one_fork_at_a_time
    _process_states.forget()
    _paused.clear()
    _one_fork_at_a_time = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
