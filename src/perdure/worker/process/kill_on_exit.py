"""The kill-on-exit pipe: when the worker closes its end, or dies, the system kills the child and all that it started.

Nobody writes into the pipe. The worker has one end. The child asks Linux to send SIGKILL to its process group on any
event of the pipe; the only one is that the last holder of the worker's end is gone. No code of the child runs for
this, so a handler that holds the interpreter dies as well. The signal for the death of a parent would kill the child
alone, and leave what it started.
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
    """The worker's end of the pipe; until the child has started, also the child's end."""

    def __init__(self) -> None:
        self.child_end, held = os.pipe()
        # Closed also on garbage collection; not by atexit, because the end of the process closes it.
        self.let_go = finalize(self, os.close, held)
        self.let_go.atexit = False
        _all.add(self)

    def close_child_end(self) -> None:
        """Close our copy of the child's end: the child has it now."""
        os.close(self.child_end)


_all: WeakRegistry[KillOnExit] = WeakRegistry()


def _forget_all() -> None:
    """Close the worker's ends in a fork of the worker: a fork that lives on would keep the children alive."""
    for kill_on_exit in _all.now():
        kill_on_exit.let_go()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def die_with_worker(end: int, worker: int) -> None:
    """Called in the child before it starts anything. Outside Linux, only its socket shows that the worker died."""
    os.set_inheritable(end, False)
    if sys.platform == "linux" and os.getpgrp() == os.getpid():
        import fcntl  # Windows has none

        try:
            fcntl.fcntl(end, fcntl.F_SETOWN, -os.getpgrp())
            fcntl.fcntl(end, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(end, fcntl.F_SETFL, fcntl.fcntl(end, fcntl.F_GETFL) | os.O_ASYNC)
        except OSError:
            _die_with_parent()
    # The worker may have died before.
    if os.getppid() != worker or _is_closed(end):
        os._exit(1)


def _is_closed(end: int) -> bool:
    poll = select.poll()
    poll.register(end, select.POLLIN)
    return bool(poll.poll(0))


def _die_with_parent() -> None:
    """For systems that only look like Linux: it kills the child alone."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
