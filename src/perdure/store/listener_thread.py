"""The listener thread: receives notifications of other processes' commits while this process has listeners.

Notifications only make things faster. Every listener also polls, so this thread may miss notifications, and it never
raises an error.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, sleep
from typing import Final

from perdure.store.listeners import Listener, Listeners

# The thread outlives its last listener by this many seconds: a caller that waits for one job may soon wait for another.
LINGER_SECONDS = 10.0

# The longest single wait. After each wait the thread checks whether it still has listeners.
_LONGEST_WAIT: Final = 15.0
# A shorter wait uses sleep(): poll() counts in milliseconds, and such a short wait need not be interruptible.
_SHORTEST_WAIT: Final = 0.002
# How long ``stop`` waits for the thread. A thread that is connecting may take longer, and then ends by itself.
_STOP_SECONDS: Final = 0.2

# Windows has only select(). Elsewhere select() cannot wait for file descriptors above 1023, so poll() is used.
_Selector = getattr(selectors, "PollSelector", selectors.SelectSelector)

_log = logging.getLogger("perdure.store")


class Ended(Exception):
    """There are no listeners left, or the store was closed."""


class ListenerThread(ABC):
    """A daemon thread that runs ``listen`` and notifies the listeners. It starts when the first listener is added."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._stopped = False
        self.forget()

    @abstractmethod
    def listen(self, waiter: Waiter) -> None:
        """Pass notifications to ``notify`` until ``waiter`` raises Ended. Every wait must go through ``waiter``."""

    @property
    def hears(self) -> bool:
        """Whether the thread now notices the commits of other processes, as far as it knows."""
        return self._waiter is not None

    def add(self, listener: Listener) -> Callable[[], None]:
        """Add a listener; return a function that removes it."""
        listening, remove = object(), self._listeners.add(listener)

        def end() -> None:
            remove()
            with self._lock:
                self._present.discard(listening)
                self._quiet_since = monotonic()

        with self._lock:
            self._present.add(listening)
            if self._waiter is None and not self._stopped:
                self._start()
        return end

    def notify(self, topics: frozenset[str]) -> None:
        self._listeners.notify(topics)

    def stop(self, *, wait: bool = True) -> None:
        """End the thread permanently."""
        self._stopped = True
        waiter, thread = self._waiter, self._thread
        if waiter is not None:
            waiter.end()
        if wait and thread is not None and thread is not threading.current_thread():
            thread.join(_STOP_SECONDS)

    def forget(self) -> None:
        """Drop all state, for example in a forked child, where the thread and its listeners do not exist."""
        # The lock is reentrant, because the garbage collector may run in a thread that holds it, and a finalizer may
        # then remove a listener.
        self._lock = threading.RLock()
        self._listeners = Listeners()
        self._present: set[object] = set()
        self._quiet_since = 0.0
        self._waiter: Waiter | None = None
        self._thread: threading.Thread | None = None

    def _start(self) -> None:
        try:
            waiter = Waiter(self._is_unused)
            thread = threading.Thread(target=self._run, args=(waiter,), name=self._name, daemon=True)
            thread.start()
        except (OSError, RuntimeError) as error:
            _log.warning("No thread can listen for notifications: %s", type(error).__name__)
            return
        self._waiter, self._thread = waiter, thread

    def _run(self, waiter: Waiter) -> None:
        try:
            self.listen(waiter)
        except Ended:
            pass
        except Exception:
            _log.exception("The listener thread ended with an unexpected error")
            with self._lock:
                self._waiter = None
        finally:
            waiter.close()

    def _is_unused(self) -> bool:
        """Whether the thread has no listeners and may end. If so, the next listener starts a new thread."""
        with self._lock:
            unused = not self._present and monotonic() - self._quiet_since > LINGER_SECONDS
            if unused:
                self._waiter = None
            return unused


class Waiter:
    """The waits of a listener thread: until a file is readable, some time has passed, or the thread is asked to end."""

    def __init__(self, is_unused: Callable[[], bool]) -> None:
        self._is_unused = is_unused
        self._ended = False
        self._here, self._there = socket.socketpair()
        self._there.setblocking(False)
        self._selectors: dict[tuple[int, ...], selectors.BaseSelector] = {}

    def wait(self, seconds: float, *files: int) -> bool:
        """Wait until one of the files is readable.

        Return False if no file becomes readable within ``seconds``, or within 15 seconds if that is less.

        Raises Ended if the thread should end.
        """
        ready = False
        if seconds < _SHORTEST_WAIT and not files:
            sleep(max(0.0, seconds))
        else:
            selector = self._selectors.get(files) or self._new_selector(files)
            ready = bool(selector.select(max(0.0, min(seconds, _LONGEST_WAIT))))
        if self._ended or self._is_unused():
            raise Ended
        return ready

    def end(self) -> None:
        self._ended = True
        with suppress(OSError):
            self._there.send(b"!")

    def close(self) -> None:
        self._here.close()
        self._there.close()

    def _new_selector(self, files: tuple[int, ...]) -> selectors.BaseSelector:
        selector: selectors.BaseSelector = _Selector()
        for file in (self._here.fileno(), *files):
            selector.register(file, selectors.EVENT_READ)
        # A selector can be reused: poll() and select() look up a file descriptor anew in each wait.
        return self._selectors.setdefault(files, selector)
