"""A block in which a handler's own writes and its job's success are one transaction."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from socket import SHUT_RDWR, socket
from threading import Timer
from time import monotonic
from typing import TYPE_CHECKING, Any

from perdure.errors import Refused, StoreBusy
from perdure.internal import failpoints
from perdure.plan.plan import run

if TYPE_CHECKING:
    from perdure.worker.context import JobContext

WARN, REFUSE = 1.0, 10.0
"""On SQLite: seconds after which a warning about a block is logged, and after which its connection is closed."""

_log = logging.getLogger("perdure.worker")


class TransactionBlock:
    """``with ctx.transaction() as conn:`` or ``async with``: a driver's connection, in a transaction.

    The end of the block records the job's success and commits. If the block raises, the transaction is rolled back. On
    SQLite the block holds the write lock of the whole database, for which heartbeats wait, so it must be short.
    """

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._store = context.store
        self._holds_all = self._store.embedded
        self._timers: list[Timer] = []
        self._began = 0.0
        self._taken = False
        self._conn: Any = None
        self._release: Callable[[], None] = lambda: None

    def __enter__(self) -> Any:
        with self._one_at_a_time():
            self._conn = self._store.connect()
            if self._taken:
                self._conn.close()
                raise _aborted()
        self._watch()
        return self._conn

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._end(error)

    async def __aenter__(self) -> Any:
        with self._one_at_a_time():
            self._conn = await self._store.aconnect()
            if self._taken:
                await self._discard()
                raise _aborted()
        self._watch()
        return self._conn

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._holds_all:
            self._end(error)
            return
        try:
            with self._only_if_committed(error):
                if error is not None:
                    await self._conn.rollback()
                    return
                if not self._context.has_succeeded:
                    await self._context.asucceed(conn=self._conn)
                _reach("before_own_commit")
                await self._conn.commit()
                _reach("after_own_commit")
        finally:
            self._context.block = None
            self._release()
            await self._conn.close()

    def _end(self, error: BaseException | None) -> None:
        try:
            with self._only_if_committed(error):
                self._unwatch()
                if error is not None:
                    self._conn.rollback()
                    return
                if not self._context.has_succeeded:
                    run(self._store, self._context._succeed(conn=self._conn))
                _reach("before_own_commit")
                self._conn.commit()
                _reach("after_own_commit")
        finally:
            self._context.block = None
            self._release()
            self._conn.close()

    def waits_for_nobody(self, conn: object) -> bool:
        """Whether ``conn`` is this block's SQLite connection, which is never async and already has the write lock."""
        return self._holds_all and conn is self._conn

    @contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        """Refuse a nested block.

        The outer block records the success. On SQLite, the inner block would wait for ever for the outer block.
        """
        if self._context.block is not None:
            raise Refused(
                "A ctx.transaction() of this job is open: use its connection.", code="job.nested_transaction"
            )
        self._context.block = self
        try:
            yield
        except BaseException:
            self._context.block = None
            raise

    @contextmanager
    def _only_if_committed(self, error: BaseException | None) -> Iterator[None]:
        """Forget a success that was rolled back, so that another block of this handler writes it again."""
        try:
            yield
        except Exception as failure:
            # If sqlstate is None, the connection was lost, and only the database knows whether the commit succeeded.
            if getattr(failure, "sqlstate", "") is not None:
                self._context.forget_success()
            raise
        if error is not None:
            self._context.forget_success()

    def _watch(self) -> None:
        self._began = monotonic()
        self._release = self._store.mark_self_locked()
        if self._holds_all:
            self._timers = [Timer(WARN, self._warn), Timer(REFUSE, self.abort)]
            for timer in self._timers:
                timer.daemon = True
                timer.start()

    def _unwatch(self) -> None:
        for timer in self._timers:
            timer.cancel()
        if self._taken and monotonic() - self._began <= REFUSE:
            raise _aborted()
        if self._holds_all and monotonic() - self._began > REFUSE:
            raise StoreBusy(
                f"The transaction of this job held SQLite's write lock for more than {REFUSE:g} s."
            )

    def abort(self) -> None:
        """Roll the transaction back and release its locks. Called from any thread."""
        self._taken = True
        conn = self._conn
        if conn is None:
            return  # the block waits for its connection, and will find ``_taken`` set
        if self._holds_all:
            conn.interrupt()  # otherwise close() would wait for a running statement
            conn.close()
        else:
            # The driver's close() is not safe while another thread uses the connection. Shutting the socket down is
            # safe, and makes the server roll back.
            with socket(fileno=os.dup(conn.fileno())) as duplicate:
                duplicate.shutdown(SHUT_RDWR)

    async def _discard(self) -> None:
        if self._holds_all:
            self._conn.close()
        else:
            await self._conn.close()

    def _warn(self) -> None:
        _log.warning(
            "Job %s holds SQLite's write lock for more than %g s; after %g s it is taken from it",
            self._context.job_id,
            WARN,
            REFUSE,
        )


def _aborted() -> StoreBusy:
    return StoreBusy("The transaction of this job was rolled back, because its worker was about to end.")


def _reach(place: failpoints.Place) -> None:
    if failpoints.armed:
        failpoints.reach(place)
