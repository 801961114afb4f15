"""Group commit: several calls share one transaction, and therefore one wait for the disk."""

from __future__ import annotations

import math
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from time import monotonic
from typing import Any, TypeVar

from perdure.errors import StoreClosed
from perdure.internal import failpoints
from perdure.store.schema import migrate
from perdure.store.schema.files import Migration
from perdure.store.schema.pending import Work
from perdure.store.sqlite.checkpoint import Checkpoints
from perdure.store.sqlite.connect import Database, Execute, executor
from perdure.store.sqlite.errors import is_undecodable, patiently, translate
from perdure.store.sqlite.migrate import SqliteTarget, refuse_without_tables
from perdure.store.sqlite.pending_call import PendingCall
from perdure.store.sqlite.self_deadlock import LOOK_AFTER, look_for_own_transaction

T = TypeVar("T")

# How many times to run a call that violates a constraint, in case a concurrent writer has written the row first.
_RUNS = 5


class GroupCommit:
    """The one write connection of a process, used by one thread at a time."""

    def __init__(
        self,
        database: Database,
        *,
        statements: Mapping[str, str],
        migrations: Sequence[Migration],
        clock: Callable[[], int],
    ) -> None:
        self._database = database
        self._statements = statements
        self._migrations = migrations
        self._clock = clock
        self._connection: sqlite3.Connection | None = None
        self._prepared = False
        self._checkpoints = Checkpoints(database)
        self._closing = threading.Event()
        # A thread holds this lock while it may call SQLite, but not while it pauses because of another process's lock.
        self._lock = threading.Lock()

    def prepare(self, *, until: float) -> None:
        """Make sure that the schema is up to date. Does not wait if this is already known."""
        if not self._prepared:
            self.migrate(until=until)

    def migrate(self, *, until: float, to: int | None = None) -> list[int]:
        """Bring the schema up to date, or to version ``to``; return the versions applied."""
        applied: list[int] = []
        with self._lock:
            patiently(lambda: self._open(applied, to=to), until=until, rest=self._rest_with(self.look))
        return applied

    def pending(self, *, until: float, to: int | None = None) -> list[Work]:
        """The pending migrations. Changes nothing."""
        if not self._database.exists:
            with closing(sqlite3.connect(":memory:", isolation_level=None)) as nothing:
                return migrate.look(SqliteTarget(nothing), self._migrations, to=to)
        return self._look(lambda target: migrate.look(target, self._migrations, to=to), until=until)

    def check(self, *, until: float) -> None:
        """Raise an error if the schema is not usable. Changes nothing."""
        self._look(lambda target: migrate.check(target, self._migrations), until=until)

    def write(self, group: list[PendingCall[Any]], followers: Iterable[PendingCall[Any]]) -> None:
        """Write the one call in ``group`` and the queued calls in ``followers`` in one transaction.

        Appends to ``group`` each follower that it runs. When this returns, every call in ``group`` is ``done``, with a
        value or an error. No call is ``done`` before its commit.
        """
        with self._lock:
            try:
                self._write_together(group, followers)
            except Exception as error:
                self._recover(group, error)
            finally:
                self._roll_back()

    def checkpoint(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._checkpoints.after_commit(self._connection)

    def seen(self) -> object | None:
        """A value that changes when other connections have committed; None if it cannot be read now."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            if self._connection is None:
                # Without a connection nothing can be compared, so report a change, unless the file is gone.
                return None if self._database.lost else object()
            # Fetch all rows, because an unfinished statement would keep its read transaction.
            return self._connection, self._connection.execute("PRAGMA data_version").fetchall()
        except sqlite3.Error:
            return None
        finally:
            self._lock.release()

    def look(self) -> None:
        """Raise Refused if the write for which this thread or task waits needs a lock that its own caller holds."""
        look_for_own_transaction(self._database.path, self._database.all_connections)

    def stop_waiting(self) -> None:
        """Raise StoreClosed in calls that wait for another process's lock."""
        self._closing.set()

    def pause(self, *, timeout: float) -> bool:
        """Close the connection, and open no connection until ``resume``. Return False if that takes too long."""
        if not self._lock.acquire(timeout=timeout):
            return False
        if not self._database.in_memory:
            self._close()
        return True

    def resume(self) -> None:
        self._lock.release()

    def close(self, *, timeout: float = -1) -> None:
        """Close the connection. If it is still in use after ``timeout`` seconds, leave it open."""
        if self._lock.acquire(timeout=timeout):
            try:
                self._close()
            finally:
                self._lock.release()

    def _look(self, see: Callable[[SqliteTarget], T], *, until: float) -> T:
        with self._lock:
            return patiently(lambda: self._look_once(see), until=until, rest=self._rest)

    def _look_once(self, see: Callable[[SqliteTarget], T]) -> T:
        self._database.refuse_if_missing()
        connection = self._connection or self._database.open(read_only=True)
        try:
            return see(SqliteTarget(connection))
        finally:
            if connection is not self._connection:
                self._database.close(connection)

    def _write_together(
        self, group: list[PendingCall[Any]], followers: Iterable[PendingCall[Any]], *, lossy: bool = False
    ) -> None:
        (first,) = group
        rest = self._rest_with(lambda: first.call_back(self.look))
        connection = patiently(self._begin, until=first.until, rest=rest)
        # The first call needs no savepoint: the rollback of the transaction undoes it.
        first.run(self._execute(connection, lossy=lossy))
        for call in followers:
            group.append(call)
            self._run_apart(connection, call)
        if failpoints.armed:
            failpoints.reach("before_commit")
        connection.execute("COMMIT")
        if failpoints.armed:
            failpoints.reach("after_commit")
        for call in group:
            call.done = True

    def _run_apart(self, connection: sqlite3.Connection, call: PendingCall[Any]) -> None:
        """Run a call in a savepoint. If the operation refuses, undo only this call. An SQLite error fails the group."""
        connection.execute("SAVEPOINT call")
        try:
            call.run(self._execute(connection))
        except sqlite3.Error:
            raise
        except Exception as refusal:
            connection.execute("ROLLBACK TO call")
            call.fail(refusal)
        connection.execute("RELEASE call")

    def _recover(self, group: list[PendingCall[Any]], error: Exception) -> None:
        """After a group has failed, run each call again in its own transaction, so that each gets its own error.

        Calls that were refused also run again, because the reason may be another call's write, now rolled back. A call
        that was alone runs again only if it violated a constraint or read text that is not UTF-8.
        """
        self._roll_back()
        if len(group) == 1 and not (isinstance(error, sqlite3.IntegrityError) or is_undecodable(error)):
            _refuse(group[0], error)
            return
        for call in group:
            self._write_alone(call)

    def _write_alone(self, call: PendingCall[Any]) -> None:
        error: Exception | None = None
        lossy = False
        for _ in range(_RUNS):
            try:
                self._write_together([call], (), lossy=lossy)
            except sqlite3.IntegrityError as broken:
                error = broken
                self._roll_back()
            except Exception as refusal:
                error = refusal
                self._roll_back()
                if lossy or not is_undecodable(refusal):
                    break
                lossy = True
            else:
                return
        assert error is not None
        _refuse(call, error)

    def _begin(self) -> sqlite3.Connection:
        if self._connection is None:
            self._open([], create=not self._prepared)
        assert self._connection is not None
        self._connection.execute("BEGIN IMMEDIATE")
        return self._connection

    def _open(self, applied: list[int], *, create: bool = True, to: int | None = None) -> None:
        """Open the connection and migrate. Without ``create``, it is an error if the file or its tables are missing."""
        connection = self._connection or self._database.open(create=create)
        try:
            if not create:
                refuse_without_tables(connection, self._migrations)
            # Note each version at once. If another process's lock then ends this try, the next try does not apply the
            # version again, but the caller must still learn of it.
            for version in migrate.apply(SqliteTarget(connection), self._migrations, to=to):
                applied.append(version)
        except BaseException:
            if connection is not self._connection:
                self._database.close(connection)
            raise
        if self._connection is None:
            self._database.note_file()
        self._connection = connection
        self._prepared = self._prepared or to is None

    def _rest_with(self, look: Callable[[], None]) -> Callable[[float], None]:
        """Return a function that pauses between two tries of a call.

        Once LOOK_AFTER seconds have passed, it also calls ``look``, a single time.
        """
        look_at = monotonic() + LOOK_AFTER

        def rest(seconds: float) -> None:
            nonlocal look_at
            if monotonic() >= look_at:
                look_at = math.inf
                with self._released():
                    look()
            self._rest(seconds)

        return rest

    def _rest(self, seconds: float) -> None:
        with self._released():
            closing = self._closing.wait(seconds)
        if closing:
            raise StoreClosed

    @contextmanager
    def _released(self) -> Iterator[None]:
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()

    def _execute(self, connection: sqlite3.Connection, *, lossy: bool = False) -> Execute:
        return executor(connection, self._statements, self._clock(), lossy=lossy)

    def _roll_back(self) -> None:
        """Roll back. If that fails, close the connection."""
        connection = self._connection
        if connection is None or not connection.in_transaction:
            return
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        if connection.in_transaction:
            self._close()

    def _close(self) -> None:
        self._checkpoints.close()
        if self._connection is not None:
            self._database.close(self._connection)
            self._connection = None


def _refuse(call: PendingCall[Any], error: Exception) -> None:
    call.fail(translate(error))
    call.done = True
