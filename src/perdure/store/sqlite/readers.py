"""Reading calls. Each call reads a snapshot on a read-only connection, while other calls may write."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from queue import Empty, LifoQueue
from typing import Any, Protocol, TypeVar

from perdure.errors import StoreClosed
from perdure.internal.threads import DaemonThreads
from perdure.store.sqlite.connect import Database, executor
from perdure.store.sqlite.errors import is_undecodable, patiently, translate
from perdure.store.sqlite.pending_call import LoopCall, PendingCall, ThreadCall, wake_callers

T = TypeVar("T")

_MOST_CONNECTIONS = 4


class Prepare(Protocol):
    def __call__(self, *, until: float) -> None:
        """Make sure that the schema is up to date."""


class Readers:
    """A few read connections.

    The last used connection is taken first. If all are in use, a new connection is opened, or, if there are
    ``_MOST_CONNECTIONS``, the call waits.
    """

    def __init__(
        self, database: Database, *, statements: Mapping[str, str], clock: Callable[[], int], prepare: Prepare
    ) -> None:
        self._database = database
        self._statements = statements
        self._clock = clock
        self._prepare = prepare
        self._closed = False
        self._threads = DaemonThreads("perdure-sqlite-reader", limit=_MOST_CONNECTIONS)
        # None is a slot without a connection. A call takes a slot while it reads. ``pause`` takes all slots.
        self._slots: LifoQueue[sqlite3.Connection | None] = LifoQueue()
        for _ in range(_MOST_CONNECTIONS):
            self._slots.put(None)

    def perform(self, call: ThreadCall[T]) -> T:
        self._read(call)
        return call.outcome()

    async def aperform(self, call: LoopCall[T]) -> T:
        self._threads.submit(partial(self._read_for_a_loop, call))
        await call.wait()
        return call.outcome()

    def pause(self, *, timeout: float) -> bool:
        """Close every connection, and open no connection until ``resume``.

        If that takes too long, undo it and return False.
        """
        until = time.monotonic() + timeout
        taken: list[sqlite3.Connection | None] = []
        try:
            while len(taken) < _MOST_CONNECTIONS:
                taken.append(self._slots.get(timeout=max(0, until - time.monotonic())))
        except Empty:
            for connection in taken:
                self._slots.put(connection)
            return False
        for connection in taken:
            self._close(connection)
        return True

    def resume(self) -> None:
        for _ in range(_MOST_CONNECTIONS):
            self._slots.put(None)

    def close(self) -> None:
        """Refuse new calls, and finish the calls that have begun."""
        self._closed = True
        self._threads.stop()
        for _ in range(_MOST_CONNECTIONS):
            self._close(self._slots.get())
        self.resume()

    def abandon(self) -> None:
        """Close the connections that are not in use. Does not wait."""
        self._threads.stop(wait=False)
        with suppress(Empty):
            while True:
                self._close(self._slots.get_nowait())

    def _read_for_a_loop(self, call: LoopCall[Any]) -> None:
        if call.wanted:
            self._read(call)
            wake_callers([call])

    def _read(self, call: PendingCall[Any]) -> None:
        try:
            patiently(partial(self._read_once, call), until=call.until)
        except Exception as error:
            call.fail(translate(error))

    def _read_once(self, call: PendingCall[Any]) -> None:
        connection = self._slots.get()
        try:
            if self._closed:
                raise StoreClosed
            if connection is None:
                connection = self._open(until=call.until)
            self._read_snapshot(connection, call)
        except sqlite3.Error:
            # Do not reuse the connection: its state is unknown.
            self._close(connection)
            connection = None
            raise
        finally:
            self._slots.put(connection)

    def _open(self, *, until: float) -> sqlite3.Connection:
        self._prepare(until=until)
        return self._database.open(read_only=True, create=False)

    def _close(self, connection: sqlite3.Connection | None) -> None:
        if connection is not None:
            self._database.close(connection)

    def _read_snapshot(self, connection: sqlite3.Connection, call: PendingCall[Any]) -> None:
        try:
            self._run(connection, call)
        except sqlite3.OperationalError as error:
            if not is_undecodable(error):
                raise
            self._run(connection, call, lossy=True)

    def _run(self, connection: sqlite3.Connection, call: PendingCall[Any], *, lossy: bool = False) -> None:
        connection.execute("BEGIN")
        try:
            call.run(executor(connection, self._statements, self._clock(), lossy=lossy))
        finally:
            # SQLite may have rolled back by itself.
            if connection.in_transaction:
                connection.execute("ROLLBACK")
