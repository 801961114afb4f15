"""A few connections, opened when needed, each lent to one operation at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, Semaphore
from time import monotonic
from typing import Final

from perdure.errors import StoreBusy, StoreClosed
from perdure.store.postgres_connect import connect
from perdure.store.postgres_session import Session

# Heartbeats and finishes have connections of their own, or a flood of enqueues would cost a worker its jobs.
URGENT_SIZE: Final = 2
IDLE_SECONDS: Final = 60.0


class Pool:
    """At most ``size`` sessions for ordinary operations and two for urgent ones, the last used lent first.

    No thread watches over them: a session idle for a minute is closed when another comes back.
    """

    def __init__(self, url: str, *, prepare: bool | None, size: int) -> None:
        self._url = url
        self._prepare = prepare
        self._size = size
        self._closed = False
        self._idle: list[tuple[Session, float]] = []
        self.forget()

    @contextmanager
    def lend(self, *, urgent: bool, timeout: float | None) -> Iterator[Session]:
        """A session for as long as the block lasts; it comes back only if the block left it clean."""
        slots = self._urgent if urgent else self._ordinary
        if not slots.acquire(timeout=timeout):
            raise StoreBusy("Every connection of this process to the database is in use.")
        try:
            session = self._take() or self._open()
            try:
                yield session
            finally:
                self._give_back(session)
        finally:
            slots.release()

    def drop_idle(self) -> None:
        """Close what lies idle: the database went away, and they went with it."""
        with self._lock:
            idle, self._idle = self._idle, []
        for session, _ in idle:
            session.close()

    def close(self) -> None:
        """Close what lies idle now and what is lent out once it comes back."""
        with self._lock:
            self._closed = True
        self.drop_idle()

    def forget(self) -> None:
        """Start with nothing. In a forked child: the parent's sessions are neither to be used nor closed."""
        self._lock = Lock()
        self._idle = []
        self._ordinary = Semaphore(self._size)
        self._urgent = Semaphore(URGENT_SIZE)

    def _take(self) -> Session | None:
        if self._closed:
            raise StoreClosed
        while True:
            with self._lock:
                if not self._idle:
                    return None
                session, _ = self._idle.pop()
            if not session.notices_end():
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
