"""Operations of one round trip, which the event loop itself carries out.

A thread would cost two thread switches and waits for the interpreter's lock: 0.2 ms of a single enqueue, and in a busy
worker the overlap of database and handlers. Everything is sent at the start, COMMIT included: a blocked event loop
holds no row lock, unless query or answer exceed the socket buffers. An event loop uses at most half of the connections,
and none of those for heartbeats.

A turn of a worker may be sent behind another that is not answered yet: the server goes from one to the next without a
pause. On two connections it would do both at once, and then wait for us.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from selectors import EVENT_READ, EVENT_WRITE
from time import monotonic
from typing import Any, Generic, TypeVar

import psycopg

from perdure.ops.op import Operation, Priority
from perdure.store.postgres.pool import Pool, limits
from perdure.store.postgres.session import LATE, LOST, Session, SocketWaits

T = TypeVar("T")


class LoopOperation(Generic[T]):
    """One operation in flight. It runs to its end whether or not somebody still waits for it."""

    def __init__(
        self,
        session: Session,
        work: SocketWaits[T],
        over: Callable[[LoopOperation[Any]], None],
        *,
        leader: LoopOperation[Any] | None = None,
    ) -> None:
        self._work = work
        self._over = over
        self._writes = False
        self._finished = False
        self._timer: asyncio.TimerHandle | None = None
        self.session = session
        self.leader = leader
        self.follower: LoopOperation[Any] | None = None
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T] = self.loop.create_future()

    def start(self) -> None:
        if self.leader is None:
            self.loop.add_reader(self.session.socket, self._advance)
        else:
            self.leader.follower = self
        self._advance()

    def lead(self) -> None:
        """The call that it was sent behind has ended: the next answer is its own."""
        self.leader = None
        self._writes = False
        try:
            self.loop.add_reader(self.session.socket, self._advance)
        except OSError:  # libpq has closed the socket
            self.session.broken = True
        if self.session.broken:
            self.lose()
        else:
            self._advance()

    def lose(self) -> None:
        """Fail: its connection is lost."""
        self._advance(psycopg.OperationalError(LOST))

    @property
    def takes_another(self) -> bool:
        """Whether another call may be sent behind it."""
        alone = self.leader is None and self.follower is None
        return alone and not self._writes and self.session.takes_another

    def abort(self) -> None:
        """Give up: its loop was closed, and nobody reads the answer."""
        self._finished = True
        self._work.close()

    def _advance(self, fault: psycopg.Error | None = None) -> None:
        if self._finished:
            return  # the socket was readable and writable, and the first event ended the call
        try:
            event = next(self._work) if fault is None else self._work.throw(fault)
        except StopIteration as end:
            if not self.future.done():
                self.future.set_result(end.value)
            self._finish()
        except BaseException as error:
            if not self.future.done():
                self.future.set_exception(error)
            self._finish()
            if not isinstance(error, Exception):
                raise
        else:
            large = self._writes or bool(event & EVENT_WRITE)
            self._wait(event)
            if large and self.leader is not None:
                self.leader._advance()  # while flushing we may have read the leader's answer; let it proceed

    def _wait(self, event: int) -> None:
        if bool(event & EVENT_WRITE) != self._writes:
            self._writes = not self._writes
            if self._writes:
                self.loop.add_writer(self.session.socket, self._advance)
            else:
                self.loop.remove_writer(self.session.socket)
        if self._timer is None:
            self._timer = self.loop.call_later(self.session.deadline - monotonic(), self._late)

    def _late(self) -> None:
        self._timer = None
        if monotonic() < self.session.deadline:  # another answer is awaited by now
            self._wait(EVENT_READ | EVENT_WRITE if self._writes else EVENT_READ)
        else:
            self._advance(psycopg.OperationalError(LATE))

    def _finish(self) -> None:
        self._finished = True
        # libpq closes the socket of a connection that is lost, and not every selector forgives that.
        if self.leader is None:
            with suppress(OSError):
                self.loop.remove_reader(self.session.socket)
        with suppress(OSError):
            self.loop.remove_writer(self.session.socket)
        if self._timer is not None:
            self._timer.cancel()
        self._over(self)


class LoopIO:
    """The calls in flight of a store, each on a session of its pool that was idle, or behind another call."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._calls: dict[LoopOperation[Any], Operation[..., Any]] = {}
        self._open = True

    def start(
        self, operation: Operation[..., T], work: Callable[[Session], SocketWaits[T]]
    ) -> asyncio.Future[T] | None:
        """Start a call on an idle session; return None if there is none, or the loop cannot wait for sockets."""
        self.clear()
        leader = self._leader() if operation.pipelined else None
        session = leader.session if leader is not None else self._lend_idle(operation.priority)
        if session is None:
            return None
        call = LoopOperation(session, work(session), self._over, leader=leader)
        self._calls[call] = operation
        try:
            call.start()
        except NotImplementedError:  # Windows, by default
            self._open = False
            self._abort(call)
            return None
        except BaseException:
            self._abort(call)
            raise
        return call.future

    @property
    def takes_another_turn(self) -> bool:
        return self._leader() is not None

    def _leader(self) -> LoopOperation[Any] | None:
        """The turn of this event loop that another may be sent behind."""
        loop = asyncio.get_running_loop()
        for call, operation in self._calls.copy().items():  # others add and remove theirs
            if operation.pipelined and call.loop is loop and call.takes_another:
                return call
        return None

    def _lend_idle(self, priority: Priority) -> Session | None:
        most = limits(self._pool.size)[priority] // 2
        full = sum(under_way.priority == priority for under_way in tuple(self._calls.values())) >= most
        return self._pool.lend_idle(priority) if self._open and not full else None

    def clear(self) -> None:
        """Abort the calls of loops that were closed."""
        for call in list(self._calls):
            if call.loop.is_closed():
                self._abort(call)

    def forget(self) -> None:
        """In a forked child."""
        self._calls = {}

    def _abort(self, call: LoopOperation[Any]) -> None:
        # Several threads may find it: the one that removes it from the dict aborts it.
        operation = self._calls.pop(call, None)
        if operation is None:
            return
        call.abort()
        if call.leader is not None:
            call.leader.follower = None
        else:
            self._pool.take_back(call.session, operation.priority)

    def _over(self, call: LoopOperation[Any]) -> None:
        operation = self._calls.pop(call, None)
        if operation is None:
            return
        if (leader := call.leader) is not None:
            leader.follower = None
            if call.session.broken:
                leader.lose()
        elif call.follower is not None:
            call.follower.lead()  # and the session is its own
        else:
            self._pool.take_back(call.session, operation.priority)
