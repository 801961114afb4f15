"""What a child hangs on: when its worker lets go, or dies, the system kills the child and all that it started.

A pipe into which nobody writes. The worker has one end; the child tells Linux to send SIGKILL to its process group
as soon as the pipe moves, which is when the last holder of the other end is gone. No code of the child is needed
for it, so a handler that holds the interpreter dies as well. The signal for the death of a parent would reach the
child alone, before it could end what it started.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
from contextlib import suppress
from weakref import finalize

from perdure.store.living import Living


class Tether:
    """The worker's end, and until the child has it also the child's."""

    def __init__(self) -> None:
        self.loose, held = os.pipe()
        # Also if the worker is forgotten with its loop; not at the end of the program, which comes soon enough.
        self.let_go = finalize(self, os.close, held)
        self.let_go.atexit = False
        _all.add(self)

    def tied(self) -> None:
        """The child has its end."""
        os.close(self.loose)


_all: Living[Tether] = Living()


def _forget_all() -> None:
    """A fork of the worker that lives on, such as a pool's, must not hold what the worker held."""
    for tether in _all.now():
        tether.let_go()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def hang_on(end: int, worker: int) -> None:
    """In the child, before it starts anything. Elsewhere than on Linux only its socket tells it of the end."""
    os.set_inheritable(end, False)
    if sys.platform == "linux" and os.getpgrp() == os.getpid():
        import fcntl  # Windows has none

        try:
            fcntl.fcntl(end, fcntl.F_SETOWN, -os.getpgrp())
            fcntl.fcntl(end, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(end, fcntl.F_SETFL, fcntl.fcntl(end, fcntl.F_GETFL) | os.O_ASYNC)
        except OSError:
            _die_with_parent()
    # It may have died before.
    if os.getppid() != worker or _is_loose(end):
        os._exit(1)


def _is_loose(end: int) -> bool:
    poll = select.poll()
    poll.register(end, select.POLLIN)
    return bool(poll.poll(0))


def _die_with_parent() -> None:
    """Where a system only looks like Linux: the child alone."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
