"""The connection pool: a few sessions, opened when needed, each lent to one operation at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import BoundedSemaphore, Lock
from time import monotonic
from typing import Final

from perdure.errors import StoreBusy, StoreClosed
from perdure.ops.op import Priority
from perdure.store.postgres.connect import connect
from perdure.store.postgres.session import Session

# Urgent operations, such as recording outcomes, have separate connections. Otherwise a flood of enqueues would block a
# worker. The heartbeat has a separate connection, too, because an urgent operation may wait long for a row lock.
URGENT_SIZE: Final = 2
IDLE_SECONDS: Final = 60.0

# A session used this recently is lent without a check whether the server has closed it. The check takes two system
# calls, 20 µs of a single enqueue. If the server has closed the session, the operation fails and is run again.
FRESH_SECONDS: Final = 0.1


def limits(size: int) -> Mapping[Priority, int]:
    """How many operations of each priority may run at a time."""
    return {"normal": size, "urgent": URGENT_SIZE, "heartbeat": 1}


class Pool:
    """At most ``size`` sessions for ordinary operations, two sessions for urgent operations and one for heartbeats.

    Of the idle sessions that last served the same priority, the one used last is lent, because its settings are already
    in place. If there is none, the session used last is lent.

    A session that was idle for a minute is closed when another session is given back; no thread watches the time.
    """

    def __init__(self, url: str, *, prepare: bool | None, size: int) -> None:
        self._url = url
        self._prepare = prepare
        self.size = size
        self._closed = False
        self._idle: list[tuple[Session, float]] = []
        self.forget()

    @contextmanager
    def lend(self, priority: Priority, *, timeout: float | None) -> Iterator[Session]:
        """Lend a session for the length of a block.

        The session returns to the pool only if the block leaves it clean.
        """
        if not self._slots[priority].acquire(timeout=timeout):
            raise StoreBusy("Every connection of this process to the database is in use.")
        try:
            session = self._take(priority) or self._open()
        except BaseException:
            self._slots[priority].release()
            raise
        self._mark_lent(session, priority)
        try:
            yield session
        finally:
            self.take_back(session, priority)

    def lend_idle(self, priority: Priority) -> Session | None:
        """Lend an idle session, or return None without waiting. The caller must pass the session to ``take_back``."""
        if not self._slots[priority].acquire(blocking=False):
            return None
        session = None
        try:
            session = self._take(priority)
        finally:
            if session is None:
                self._slots[priority].release()
            else:
                self._mark_lent(session, priority)
        return session

    def take_back(self, session: Session, priority: Priority) -> None:
        self._lent.discard(session)
        try:
            self._give_back(session)
        finally:
            self._slots[priority].release()

    def use(self) -> tuple[int, int]:
        """How many sessions are lent, and how many are idle."""
        return len(self._lent), len(self._idle)

    def drop_idle(self) -> None:
        """Close the idle sessions, because the database went away."""
        with self._lock:
            idle, self._idle = self._idle, []
        for session, _ in idle:
            session.close()

    def close(self) -> None:
        """Close the idle sessions now, and lent sessions when they come back."""
        with self._lock:
            self._closed = True
        self.drop_idle()

    def forget(self) -> None:
        """Drop all state, for example in a forked child, which must neither use nor close the parent's sessions."""
        self._lock = Lock()
        self._idle = []
        self._slots = {priority: BoundedSemaphore(n) for priority, n in limits(self.size).items()}
        self._lent: set[Session] = set()

    def _mark_lent(self, session: Session, priority: Priority) -> None:
        session.last_priority = priority
        self._lent.add(session)

    def _take(self, priority: Priority) -> Session | None:
        if self._closed:
            raise StoreClosed
        while True:
            with self._lock:
                if not self._idle:
                    return None
                alike = (
                    i for i in reversed(range(len(self._idle))) if self._idle[i][0].last_priority == priority
                )
                session, since = self._idle.pop(next(alike, -1))
            if monotonic() - since < FRESH_SECONDS or not session.notices_end():
                return session
            session.close()

    def _open(self) -> Session:
        connection = connect(self._url)
        try:
            return Session(connection, prepare=self._prepare)
        except BaseException:
            connection.close()
            raise

    def _give_back(self, session: Session) -> None:
        now, surplus = monotonic(), session
        with self._lock:
            if session.idle and not self._closed:
                self._idle.append((session, now))
                surplus, since = self._idle[0]
                if now - since < IDLE_SECONDS:
                    return
                del self._idle[0]
        surplus.close()
