"""One operation that an event loop performs itself. Each event of the session's socket advances it by one step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from selectors import EVENT_READ, EVENT_WRITE
from time import monotonic
from typing import Any, Generic, TypeVar

import psycopg

from perdure.store.postgres.session import LATE, LOST, Session, SocketWaits

T = TypeVar("T")


class LoopOperation(Generic[T]):
    """One operation in flight. It runs to its end even if its caller no longer waits."""

    def __init__(
        self, session: Session, work: SocketWaits[T], over: Callable[[LoopOperation[Any]], None]
    ) -> None:
        """``over``: called when the operation has ended, even if it failed."""
        self._work = work
        self._over = over
        self._reads = False
        self._writes = False
        self._finished = False
        self._timer: asyncio.TimerHandle | None = None
        self.session = session
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T] = self.loop.create_future()

    def start(self) -> None:
        self._read()
        self._advance()

    def abort(self) -> bool:
        """Give up, because the loop was closed; return whether the session can go back to the pool."""
        self._finished = True
        self._work.close()
        return True

    def leave(self) -> bool:
        """End the operation's use of the session; return whether the session can go back to the pool."""
        return True

    def _read(self) -> None:
        self.loop.add_reader(self.session.socket, self._advance)
        self._reads = True

    def _lose(self) -> None:
        """Fail the operation, because the connection is lost."""
        self._advance(psycopg.OperationalError(LOST))

    def _advance(self, fault: psycopg.Error | None = None) -> None:
        if self._finished:
            return  # the socket was readable and writable, and the first event ended the operation
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
            self._wait(event)

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
        if monotonic() < self.session.deadline:  # the deadline has moved: another answer is awaited
            self._wait(EVENT_READ | EVENT_WRITE if self._writes else EVENT_READ)
        else:
            self._advance(psycopg.OperationalError(LATE))

    def _finish(self) -> None:
        self._finished = True
        # libpq closes the socket of a lost connection. Some selectors then raise an error.
        if self._reads:
            with suppress(OSError):
                self.loop.remove_reader(self.session.socket)
        with suppress(OSError):
            self.loop.remove_writer(self.session.socket)
        if self._timer is not None:
            self._timer.cancel()
        self._over(self)
