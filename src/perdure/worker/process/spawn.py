"""A child process: a new interpreter that is watched, and killed together with all processes that it started."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from signal import SIGKILL, Signals

from perdure.worker.process.kill_on_exit import KillOnExit


class Spawned:
    """A new interpreter in its own session and thus its own process group. It is used in the event loop's thread."""

    def __init__(self, module: str, died: Callable[[int], None]) -> None:
        """Start the process.

        ``died``: called once, in the loop, with the exit code, which is negative after a signal.
        """
        self._died = died
        self._loop = asyncio.get_running_loop()
        self._pidfd: int | None = None
        ours, theirs = socket.socketpair()
        self.socket = ours
        self._kill_on_exit = KillOnExit()
        ends = [theirs.fileno(), self._kill_on_exit.child_end]
        try:
            # This must not run in a short-lived thread: the fallback in kill_on_exit.py kills the child when the
            # thread that started it ends.
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *map(str, ends), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                pass_fds=ends,
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            self._kill_on_exit.let_go()
            raise
        finally:
            theirs.close()
            self._kill_on_exit.close_child_end()
        self._watch()

    @property
    def pid(self) -> int:
        return self._process.pid

    def signal(self, number: Signals) -> None:
        """Send a signal to the child and to all processes that it started."""
        # The process id is not reused until the process has been waited for.
        if self._process.returncode is None:
            self._signal_group(number)

    def _signal_group(self, number: Signals) -> None:
        # These errors mean that no process is left: macOS raises PermissionError for a group of dead processes.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _watch(self) -> None:
        """Watch the process instead of its socket, which may stay open in processes that it forked."""
        try:
            self._pidfd = os.pidfd_open(self._process.pid)
        except (AttributeError, OSError):
            threading.Thread(target=self._wait, name="perdure-child", daemon=True).start()
        else:
            self._loop.add_reader(self._pidfd, self._ended)

    def _wait(self) -> None:
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        else:
            self._process.wait()
        with suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(self._ended)

    def _ended(self) -> None:
        self._signal_group(SIGKILL)
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
        code = self._process.wait()
        self._kill_on_exit.let_go()
        self._died(code)
