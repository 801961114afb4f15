"""The state of an SQLite store in one process: connections, threads and queues."""

from __future__ import annotations

import math
import os
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from perdure.errors import StoreAway
from perdure.ops.op import Op, Operation
from perdure.store.listeners import Listener
from perdure.store.schema.files import Migration
from perdure.store.schema.pending import Work
from perdure.store.sqlite.connect import GONE, Database
from perdure.store.sqlite.errors import translate
from perdure.store.sqlite.fork import close_before_forks
from perdure.store.sqlite.group_commit import GroupCommit
from perdure.store.sqlite.pending_call import LoopCall, ThreadCall
from perdure.store.sqlite.readers import Readers
from perdure.store.sqlite.self_deadlock import refuse_if_self_locked
from perdure.store.sqlite.wal_watcher import WalWatcher
from perdure.store.sqlite.writer import Writer

T = TypeVar("T")

# Seconds to wait until readers and the writer are paused. This is less than the interval of heartbeats.
_PAUSE_SECONDS = 1.0


class ProcessState:
    """The state of a store in one process. It opens no file and starts no thread before its first call."""

    def __init__(
        self,
        database: Database,
        *,
        statements: Mapping[str, str],
        migrations: Sequence[Migration],
        clock: Callable[[], int],
        patience: float | None,
        announce: Callable[[frozenset[str]], None],
    ) -> None:
        self._pid = os.getpid()
        self._database = database
        self._patience = math.inf if patience is None else patience
        self._group_commit = GroupCommit(database, statements=statements, migrations=migrations, clock=clock)
        self._writer = Writer(self._group_commit, announce)
        self._readers = Readers(
            database, statements=statements, clock=clock, prepare=self._group_commit.prepare
        )
        self._listener_thread = WalWatcher(database.path, seen=self._group_commit.seen)
        close_before_forks(self)

    def perform(
        self, operation: Operation[..., T], start: Callable[[], Op[T]], *, patience: float | None = None
    ) -> T:
        if self._database.noticed or (operation.priority == "heartbeat" and self._database.has_moved):
            self._reopen()
        until = self._until if patience is None else time.monotonic() + patience
        call = ThreadCall(start, until=until, urgent=operation.priority != "normal")
        if self._reads(operation):
            return self._readers.perform(call)
        refuse_if_self_locked(self._database.path)
        return self._writer.perform(call)

    async def aperform(self, operation: Operation[..., T], start: Callable[[], Op[T]]) -> T:
        if self._database.noticed:
            from asyncio import to_thread

            await to_thread(self._reopen)
        call = LoopCall(start, until=self._until, urgent=operation.priority != "normal")
        if self._reads(operation):
            return await self._readers.aperform(call)
        refuse_if_self_locked(self._database.path)
        return await self._writer.aperform(call)

    def migrate(self, *, to: int | None) -> list[int]:
        return _translated(lambda: self._group_commit.migrate(until=self._until, to=to))

    def pending(self, *, to: int | None) -> list[Work]:
        return _translated(lambda: self._group_commit.pending(until=self._until, to=to))

    def check_schema(self) -> None:
        _translated(lambda: self._group_commit.check(until=self._until))

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Notify a listener of other processes' commits. No other process commits to a database in memory."""
        return _nothing if self._database.in_memory else self._listener_thread.add(listener)

    @property
    def hears_others(self) -> bool:
        return self._database.in_memory or self._listener_thread.hears

    def pause(self, *, timeout: float) -> bool:
        """Close every connection, and open no connection until ``resume``.

        If that takes too long, undo it and return False.
        """
        # Pause the readers first: a reader may wait for the writer, but the writer never waits for a reader.
        if not self._readers.pause(timeout=timeout):
            return False
        if not self._group_commit.pause(timeout=timeout):
            self._readers.resume()
            return False
        return True

    def resume(self) -> None:
        self._group_commit.resume()
        self._readers.resume()

    def _reopen(self) -> None:
        """Close a file that was replaced or deleted, because writes to it would be lost, and raise StoreAway.

        The next call opens the file that is then at the path.
        """
        if self.pause(timeout=_PAUSE_SECONDS):
            self._database.note_loss()
            self.resume()
            if self._database.exists:
                self._database.refuse_left_behind()
        raise StoreAway(GONE)

    def close(self) -> None:
        self._listener_thread.stop()
        self._writer.close()
        self._readers.close()
        self._database.forget()

    def abandon(self) -> None:
        """Close without waiting, because the store was garbage-collected or the program ends."""
        if self._pid != os.getpid():
            self._database.keep_for_ever()
        else:
            self._listener_thread.stop(wait=False)
            self._writer.abandon()
            self._readers.abandon()
            if not self._database.connections:
                self._database.forget()

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._database.connections)

    @property
    def is_open(self) -> bool:
        return bool(self._database.connections)

    @property
    def _until(self) -> float:
        return time.monotonic() + self._patience

    def _reads(self, operation: Operation[..., Any]) -> bool:
        # A database in memory has only one connection, the writer's.
        return operation.access == "read" and not self._database.in_memory


def _nothing() -> None:
    pass


def _translated(run: Callable[[], T]) -> T:
    try:
        return run()
    except sqlite3.Error as error:
        failed = translate(error)
    raise failed  # outside the except block, so that its context is not SQLite's error
