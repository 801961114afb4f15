"""Operations of one round trip, which the event loop performs itself, without a thread.

A thread would cost two thread switches and waits for the interpreter's lock: 0.2 ms of a single enqueue. In a busy
worker, the handlers would often hold that lock while the thread needs it to read the answers.

All statements are sent at the start, including COMMIT. An event loop that blocks afterwards therefore holds no row
lock, unless a query or an answer exceeds the socket buffers. All event loops together use at most half of the
connections, and never the connection for heartbeats.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from perdure.ops.op import Operation, Priority
from perdure.store.postgres.loop_operation import LoopOperation
from perdure.store.postgres.pipelined import PipelinedOperation, find_leader
from perdure.store.postgres.pool import Pool, limits
from perdure.store.postgres.session import Session, SocketWaits

T = TypeVar("T")


class LoopIO:
    """The operations of a store that event loops perform, each on an idle session of the pool."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._in_flight: dict[LoopOperation[Any], Priority] = {}
        self._open = True

    def start(
        self, operation: Operation[..., T], work: Callable[[Session], SocketWaits[T]]
    ) -> asyncio.Future[T] | None:
        """Send an operation; return its future, or None if no session is free or the loop cannot wait for sockets."""
        self.clear()
        started = self._begin(operation, work)
        if started is None:
            return None
        self._in_flight[started] = operation.priority
        try:
            started.start()
        except NotImplementedError:  # Windows, by default
            self._open = False
            self._abort(started)
            return None
        except BaseException:
            self._abort(started)
            raise
        return started.future

    @property
    def takes_another_cycle(self) -> bool:
        return self._leader() is not None

    def _begin(
        self, operation: Operation[..., T], work: Callable[[Session], SocketWaits[T]]
    ) -> LoopOperation[T] | None:
        leader = self._leader() if operation.pipelined else None
        session = leader.session if leader is not None else self._lend_idle(operation.priority)
        if session is None:
            return None
        if operation.pipelined:
            return PipelinedOperation(session, work(session), self._over, leader=leader)
        return LoopOperation(session, work(session), self._over)

    def _leader(self) -> PipelinedOperation[Any] | None:
        return find_leader(self._in_flight.copy())  # a copy: other threads add and remove operations

    def _lend_idle(self, priority: Priority) -> Session | None:
        most = limits(self._pool.size)[priority] // 2
        full = tuple(self._in_flight.values()).count(priority) >= most
        return self._pool.lend_idle(priority) if self._open and not full else None

    def clear(self) -> None:
        """Abort the operations of closed event loops."""
        for operation in list(self._in_flight):
            if operation.loop.is_closed():
                self._abort(operation)

    def forget(self) -> None:
        """Drop all operations, in a forked child."""
        self._in_flight = {}

    def _abort(self, operation: LoopOperation[Any]) -> None:
        # Several threads may find the same operation. The thread that removes it from the dict aborts it.
        priority = self._in_flight.pop(operation, None)
        if priority is not None and operation.abort():
            self._pool.take_back(operation.session, priority)

    def _over(self, operation: LoopOperation[Any]) -> None:
        priority = self._in_flight.pop(operation, None)
        if priority is not None and operation.leave():
            self._pool.take_back(operation.session, priority)
