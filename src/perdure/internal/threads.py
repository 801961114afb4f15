"""Daemon threads for work that must block neither an event loop nor the end of the program."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeAlias

from perdure.errors import StoreClosed

Work: TypeAlias = Callable[[], None]

_log = logging.getLogger("perdure.store")


class DaemonThreads:
    """Runs work in at most ``limit`` daemon threads. A thread is started if there is work and no thread is free."""

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._limit = limit
        self._lock = threading.Lock()
        self._stopped = False
        # The number of idle threads, minus the number of queued pieces of work.
        self._free = 0
        self._work: SimpleQueue[Work | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def submit(self, work: Work) -> None:
        with self._lock:
            if self._stopped:
                raise StoreClosed
            if self._free <= 0 and len(self._threads) < self._limit:
                self._start()
            else:
                self._free -= 1
            self._work.put(work)

    def stop(self, *, wait: bool = True) -> None:
        """End every thread once all submitted work is done. ``wait``: return only after that."""
        with self._lock:
            if not self._stopped:
                self._stopped = True
                for _ in self._threads:
                    self._work.put(None)
        for thread in self._threads:
            if wait and thread is not threading.current_thread():
                thread.join()

    def _start(self) -> None:
        name = f"{self._name}-{len(self._threads) + 1}"
        thread = threading.Thread(target=self._serve, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except Exception:
                _log.exception("Unexpected error in a thread of the store")
            # Without this, the variable would keep the finished work in memory until the next work arrives.
            del work
            with self._lock:
                self._free += 1
