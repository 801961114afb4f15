"""Writing calls: the first caller writes in its own thread, and also writes the queued calls in the same commit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from perdure.errors import StoreClosed
from perdure.internal.threads import DaemonThreads
from perdure.store.sqlite.group_commit import GroupCommit
from perdure.store.sqlite.pending_call import LoopCall, PendingCall, ThreadCall, wake_callers
from perdure.store.sqlite.write_queue import WriteQueue

T = TypeVar("T")

# The most calls of a group, and the seconds after which no further call joins it. The first caller of a group, and the
# next group, have to wait for the whole group.
_MOST_CALLS = 200
_LONGEST = 0.005
# Seconds to wait for a thread that has answered its last call and is about to release the connection.
_ABANDON_SECONDS = 0.1


class Writer:
    """Performs writing calls from any thread and any event loop, many in one commit."""

    def __init__(self, group_commit: GroupCommit, announce: Callable[[frozenset[str]], None]) -> None:
        self._group_commit = group_commit
        self._announce = announce
        self._write_queue = WriteQueue()
        self._thread = DaemonThreads("perdure-sqlite-writer", limit=1)
        # Listeners are called in a separate thread: a listener may write, and in the writer's thread it would wait for
        # itself.
        self._announcer = DaemonThreads("perdure-sqlite-announcer", limit=1)

    def perform(self, call: ThreadCall[T]) -> T:
        wake: frozenset[str] = frozenset()
        try:
            self._write_queue.enter(call)
            if not call.leads:
                call.wait(self._group_commit.look)
            if call.leads:
                wake = self._lead(call)
        finally:
            # This must also run if a signal handler raised an error while we waited or wrote.
            if call.leads or not call.done:
                self._appoint(self._write_queue.leave(call))
        self._announce(wake)
        return call.outcome()

    async def aperform(self, call: LoopCall[T]) -> T:
        self._write_queue.enter(call)
        if call.leads:
            self._appoint(call)
        try:
            await call.wait()
        finally:
            if not call.done:
                self._write_queue.withdraw(call)
        return call.outcome()

    def close(self) -> None:
        """Refuse new calls, and finish calls that have begun, except calls that wait for another process's lock."""
        self._group_commit.stop_waiting()
        self._write_queue.close()
        self._thread.stop()
        self._announcer.stop()
        self._group_commit.close()

    def abandon(self) -> None:
        """Close the connection, unless it stays in use for _ABANDON_SECONDS."""
        self._thread.stop(wait=False)
        self._announcer.stop(wait=False)
        self._group_commit.close(timeout=_ABANDON_SECONDS)

    def _lead(self, first: PendingCall[Any]) -> frozenset[str]:
        """Write this call and the queued calls; return the topics that they announce."""
        group = [first]
        try:
            self._group_commit.write(group, self._followers())
        finally:
            if len(group) > 1 or isinstance(first, LoopCall):
                self._wake_callers(group)
        self._group_commit.checkpoint()
        return first.wake.union(*[call.wake for call in group[1:]])

    def _followers(self) -> Iterator[PendingCall[Any]]:
        # A signal handler can raise an error in the main thread at any point, so that thread must not write the calls
        # of other threads.
        if threading.current_thread() is threading.main_thread():
            return
        until = time.monotonic() + _LONGEST
        for _ in range(_MOST_CALLS - 1):
            call = self._write_queue.take()
            if call is None:
                return
            yield call
            if time.monotonic() > until:
                return

    def _wake_callers(self, group: list[PendingCall[Any]]) -> None:
        """Wake the callers of written calls. If an error stopped this thread, queue the unwritten calls again."""
        if unwritten := [call for call in group[1:] if not call.done]:
            self._write_queue.put_back(unwritten)
        wake_callers(call for call in group if call.done)

    def _appoint(self, leader: PendingCall[Any] | None) -> None:
        if isinstance(leader, ThreadCall):
            leader.open_gate()
        elif leader is not None:
            self._thread.submit(partial(self._lead_for_a_loop, leader))

    def _lead_for_a_loop(self, call: PendingCall[Any]) -> None:
        wake: frozenset[str] = frozenset()
        try:
            wake = self._lead(call)
        except Exception as error:
            # The error is unexpected, but the caller still awaits an outcome.
            call.fail(error)
            wake_callers([call])
        finally:
            self._appoint(self._write_queue.leave(call))
        if wake:
            # The caller has its answer already, and may have closed the store.
            with suppress(StoreClosed):
                self._announcer.submit(partial(self._announce, wake))
