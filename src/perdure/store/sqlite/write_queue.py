"""The queue of writing calls. One call at a time is the leader; its thread also writes the queued calls."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from typing import Any

from perdure.errors import StoreClosed
from perdure.store.sqlite.pending_call import PendingCall, ThreadCall


class WriteQueue:
    """Two queues: urgent calls are taken first, then normal calls.

    A call that finds no leader becomes the leader at once.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._led = False
        self._closed = False
        self._empty = threading.Event()
        self._urgent: deque[PendingCall[Any]] = deque()
        self._others: deque[PendingCall[Any]] = deque()

    def enter(self, call: PendingCall[Any]) -> None:
        """Make this call the leader, or queue it."""
        with self._mutex:
            if self._closed:
                raise StoreClosed
            if not self._led:
                self._led = call.leads = True
                return
            if isinstance(call, ThreadCall):
                call.close_gate()
            self._queue_of(call).append(call)

    def take(self) -> PendingCall[Any] | None:
        """Take the next call from the queue, for the leader to write."""
        with self._mutex:
            return self._next()

    def put_back(self, calls: list[PendingCall[Any]]) -> None:
        """Queue these calls again, at the head and in the same order."""
        with self._mutex:
            for call in reversed(calls):
                self._queue_of(call).appendleft(call)

    def withdraw(self, call: PendingCall[Any]) -> None:
        """Remove a call, if it is still queued."""
        with self._mutex, suppress(ValueError):
            self._queue_of(call).remove(call)

    def leave(self, call: PendingCall[Any]) -> PendingCall[Any] | None:
        """Stop leading, or leave the queue. Return the next leader, if there is one; the caller must wake it."""
        with self._mutex:
            if not call.leads:
                with suppress(ValueError):
                    self._queue_of(call).remove(call)
                return None
            call.leads = False
            heir = self._next()
            if heir is not None:
                heir.leads = True
            else:
                self._led = False
                if self._closed:
                    self._empty.set()
            return heir

    def close(self) -> None:
        """Refuse new calls and wait until the last call has left."""
        with self._mutex:
            self._closed = True
            if not self._led:
                return
        self._empty.wait()

    def _next(self) -> PendingCall[Any] | None:
        if self._urgent:
            return self._urgent.popleft()
        if self._others:
            return self._others.popleft()
        return None

    def _queue_of(self, call: PendingCall[Any]) -> deque[PendingCall[Any]]:
        return self._urgent if call.urgent else self._others
