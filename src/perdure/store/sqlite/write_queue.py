"""Who writes next: one call leads at a time and takes along whoever stands in line."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from typing import Any

from perdure.errors import StoreClosed
from perdure.store.sqlite.pending_call import Call, ThreadCall


class WriteQueue:
    """Two lanes, urgent calls before the others. Whoever finds nobody leading leads at once."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._led = False
        self._closed = False
        self._deserted = threading.Event()
        self._urgent: deque[Call[Any]] = deque()
        self._others: deque[Call[Any]] = deque()

    def enter(self, call: Call[Any]) -> None:
        """Lead, or stand in line."""
        with self._mutex:
            if self._closed:
                raise StoreClosed
            if not self._led:
                self._led = call.leads = True
                return
            if isinstance(call, ThreadCall):
                call.close_gate()
            self._lane(call).append(call)

    def take(self) -> Call[Any] | None:
        """Whom the leader takes along next."""
        with self._mutex:
            return self._next()

    def put_back(self, calls: list[Call[Any]]) -> None:
        """To the head of the line again, in the same order."""
        with self._mutex:
            for call in reversed(calls):
                self._lane(call).appendleft(call)

    def withdraw(self, call: Call[Any]) -> None:
        """Step out of line, if it still stands there."""
        with self._mutex, suppress(ValueError):
            self._lane(call).remove(call)

    def leave(self, call: Call[Any]) -> Call[Any] | None:
        """Give up the lead, or step out of line; return who leads now and must be told."""
        with self._mutex:
            if not call.leads:
                with suppress(ValueError):
                    self._lane(call).remove(call)
                return None
            call.leads = False
            heir = self._next()
            if heir is not None:
                heir.leads = True
            else:
                self._led = False
                if self._closed:
                    self._deserted.set()
            return heir

    def close(self) -> None:
        """Let nobody in any more and wait until the last one has left."""
        with self._mutex:
            self._closed = True
            if not self._led:
                return
        self._deserted.wait()

    def _next(self) -> Call[Any] | None:
        if self._urgent:
            return self._urgent.popleft()
        if self._others:
            return self._others.popleft()
        return None

    def _lane(self, call: Call[Any]) -> deque[Call[Any]]:
        return self._urgent if call.urgent else self._others
