"""The kill-on-exit pipe: when the worker closes its end, or dies, the system kills the child and its subprocesses.

Nobody writes into the pipe. The worker holds one end. The child asks Linux to send SIGKILL to its process group on any
event of the pipe. The only event is that the last process which holds the worker's end closes it or dies. No code of
the child runs for this, so the signal also kills a handler that never releases the GIL. The signal that Linux sends on
the death of a parent would kill only the child, and leave the processes that the child started.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
from contextlib import suppress
from weakref import finalize

from perdure.internal.instances import WeakRegistry


class KillOnExit:
    """The worker's end of the pipe, and the child's end until the child has started."""

    def __init__(self) -> None:
        self.child_end, held = os.pipe()
        # Garbage collection closes the worker's end as well. At exit the system closes it.
        self.let_go = finalize(self, os.close, held)
        self.let_go.atexit = False
        _all.add(self)

    def close_child_end(self) -> None:
        """Close our copy of the child's end. The child has its own copy now."""
        os.close(self.child_end)


_all: WeakRegistry[KillOnExit] = WeakRegistry()


def _forget_all() -> None:
    """Close the worker's ends in a fork of the worker.

    Otherwise a fork that outlives the worker would keep children alive.
    """
    for kill_on_exit in _all.now():
        kill_on_exit.let_go()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def die_with_worker(end: int, worker: int) -> None:
    """Let the system kill this child when its worker ends. Called in the child before it starts threads or processes.

    Outside Linux, only the child's socket shows that the worker died.
    """
    os.set_inheritable(end, False)
    if sys.platform == "linux" and os.getpgrp() == os.getpid():
        import fcntl  # imported here, because Windows has no fcntl

        try:
            fcntl.fcntl(end, fcntl.F_SETOWN, -os.getpgrp())
            fcntl.fcntl(end, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(end, fcntl.F_SETFL, fcntl.fcntl(end, fcntl.F_GETFL) | os.O_ASYNC)
        except OSError:
            _die_with_parent()
    # The worker may have died before the signal was set up.
    if os.getppid() != worker or _is_closed(end):
        os._exit(1)


def _is_closed(end: int) -> bool:
    poll = select.poll()
    poll.register(end, select.POLLIN)
    return bool(poll.poll(0))


def _die_with_parent() -> None:
    """Kill only the child when its parent dies. This is for systems that look like Linux but refuse these calls."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
