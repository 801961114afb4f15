"""A session: one of perdure's own connections. Queued statements are sent in one flush and answered in one wait.

A session uses libpq's pipeline mode directly: psycopg's ``pipeline()`` waits for the socket at every statement and
cannot queue a second transaction behind the first. One insert takes 400 µs this way, and 600 µs with ``pipeline()``.
"""

from __future__ import annotations

import math
import select
from collections import deque
from collections.abc import Callable, Generator, Mapping
from enum import Enum
from functools import partial
from selectors import EVENT_READ, EVENT_WRITE
from time import monotonic
from typing import Any, Final, TypeAlias, TypeVar

import psycopg
from psycopg import postgres
from psycopg.adapt import AdaptersMap, Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGresult

from perdure.ops.op import Param, Priority, Rows
from perdure.store.drive import drive
from perdure.store.postgres.adapt import Statement, adapt

STATEMENT_SECONDS: Final = 30
# Seconds that the network may add to the server's timeouts before a connection counts as dead.
GRACE_SECONDS: Final = 10

LATE: Final = "no answer in time"
LOST: Final = "the connection is lost"

T = TypeVar("T")
SocketWaits: TypeAlias = Generator[int, None, T]
"""Yields the events to wait for at the session's socket (EVENT_READ, EVENT_WRITE), or BEHIND.

Private to store/postgres/.
"""

BEHIND: Final = 0
"""Yielded to wait for the end of the operation that was sent before this one, not for the socket."""

_NO_VALUES: Mapping[str, Param] = {}
_ABOUT_BACKEND = Statement.parse(
    "SELECT pg_catalog.pg_backend_pid(), pg_catalog.current_setting('default_transaction_isolation')"
)

_FAILED = (ExecStatus.FATAL_ERROR, ExecStatus.PIPELINE_ABORTED)


class Sync(Enum):
    """A sync message of the pipeline, which ends an implicit transaction."""

    AWAITED = 1
    """An operation waits for the answers up to this sync."""
    OWED = 2
    """Nobody waits for the answers up to this sync. They are read before the next awaited answers."""


class Session:
    """A connection for one operation at a time. It is ``broken`` after an error that leaves its state unknown.

    If ``takes_another``, a second operation may be sent before the first is answered (``pipelined.py``).

    ``prepare``: whether to prepare statements on the server. None means: only if there is no pooler.
    """

    def __init__(self, connection: psycopg.Connection[Any], *, prepare: bool | None) -> None:
        self._connection = connection
        self._pgconn = connection.pgconn
        self._reader = Transformer(adapt(AdaptersMap(postgres.adapters)))
        # The expected answers in order. Each is the name of a statement that is being prepared, or whether the rows of
        # a statement are wanted, or a sync.
        self._expected: deque[bytes | bool | Sync] = deque()
        self._prepared: set[bytes] = set()
        self._to_prepare: set[bytes] = set()
        self.socket = self._pgconn.socket
        self._comes = _watch(self.socket)
        self.deadline = 0.0
        """When to give up waiting for an answer."""
        self.prepares = False
        self.broken = False
        self.last_priority: Priority | None = None
        """The priority of the operation that used this session last."""
        self.settings: Statement | None = None
        """The settings in force. None if they are unknown, which is always the case behind a pooler."""
        self._pgconn.enter_pipeline_mode()
        self._examine_backend(prepare)

    def send(
        self, statement: Statement, values: Mapping[str, Param] = _NO_VALUES, *, rows: bool = True
    ) -> None:
        """Queue a statement. ``rows``: whether ``answer`` returns its rows."""
        bound = statement.bind(values)
        try:
            if self.prepares:
                self._prepare(statement)
                self._pgconn.send_query_prepared(statement.name, bound, result_format=Format.BINARY)
            else:
                self._pgconn.send_query_params(statement.text, bound, result_format=Format.BINARY)
        except psycopg.Error:
            self.broken = True
            raise
        self._expected.append(rows)

    def sync(self, kind: Sync = Sync.AWAITED) -> None:
        """Queue a sync after the queued statements. Outside BEGIN and COMMIT, it makes them one transaction."""
        try:
            self._pgconn.pipeline_sync()
        except psycopg.Error:
            self.broken = True
            raise
        self._expected.append(kind)

    def answer(self) -> SocketWaits[list[Rows]]:
        """Wait for the next awaited sync; return the wanted rows before it, or raise the first error before it."""
        self.deadline = monotonic() + STATEMENT_SECONDS * len(self._expected) + GRACE_SECONDS
        failures: list[psycopg.Error] = []
        try:
            yield from self.flush()
            while self._expected.count(Sync.AWAITED) > 1:
                yield BEHIND
            answers = yield from self._collect(failures)
        except psycopg.Error as lost:
            self.broken = True
            raise (failures or [lost])[0] from None
        if failures:
            raise failures[0]
        return answers

    def receive(self) -> list[Rows]:
        """Like ``answer``, but wait in this thread."""
        return self.wait_for(self.answer())

    def wait_for(self, work: SocketWaits[T]) -> T:
        """Run a generator that waits for this session's socket, in this thread."""
        return drive(work, self._wait)

    @property
    def idle(self) -> bool:
        """Whether the next operation may use this session."""
        if self.broken or Sync.AWAITED in self._expected:
            return False
        # libpq does not know the transaction status before the owed syncs are read. But only a NOTIFY has an owed sync.
        # It is sent after the operation's transaction, so that transaction has ended.
        return bool(self._expected) or self._pgconn.transaction_status == TransactionStatus.IDLE

    @property
    def takes_another(self) -> bool:
        """Whether a second operation may be sent before the first is answered.

        If so, neither operation can make the other fail.
        """
        return self.prepares and self.reads_committed and not (self._to_prepare or self.broken)

    def notices_end(self) -> bool:
        """Whether the server is known to have closed the idle connection. Does not wait."""
        try:
            # The first read may return a last message, and the second read the end of the stream.
            self._pgconn.consume_input()
            self._pgconn.consume_input()
        except psycopg.OperationalError:
            return True
        return self._pgconn.status != ConnStatus.OK

    def close(self) -> None:
        self._connection.close()

    def _examine_backend(self, prepare: bool | None) -> None:
        self.send(_ABOUT_BACKEND)
        self.sync()
        [[(backend, isolation)]] = self.receive()
        # A pooler sends an invented pid when a connection starts. If the pid is the backend's, there is no pooler.
        self.prepares = backend == self._pgconn.backend_pid if prepare is None else prepare
        self.reads_committed = isolation == "read committed"

    def _prepare(self, statement: Statement) -> None:
        if statement.name not in self._prepared and statement.name not in self._to_prepare:
            self._pgconn.send_prepare(statement.name, statement.text)
            self._to_prepare.add(statement.name)
            self._expected.append(statement.name)

    def _collect(self, failures: list[psycopg.Error]) -> SocketWaits[list[Rows]]:
        pgconn, answers = self._pgconn, list[Rows]()
        while True:
            while pgconn.is_busy():
                yield EVENT_READ
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:  # the end of one statement's results
                if pgconn.status != ConnStatus.OK:
                    raise psycopg.OperationalError(LOST)
            elif result.status == ExecStatus.PIPELINE_SYNC:
                if self._expected.popleft() is Sync.AWAITED:
                    return answers
                failures.clear()
                answers.clear()
            else:
                self._take(result, answers, failures)

    def flush(self) -> SocketWaits[None]:
        """Write all queued statements, and read meanwhile: otherwise client and server may wait for each other."""
        try:
            while self._pgconn.flush():
                yield EVENT_READ | EVENT_WRITE
                self._pgconn.consume_input()
        except psycopg.Error:
            self.broken = True
            raise

    def _wait(self, event: int) -> None:
        # Wait one second at a time, because a signal that arrives just before a wait does not interrupt it.
        while not self._comes(event, max(0.0, min(1.0, self.deadline - monotonic()))):
            if monotonic() >= self.deadline:
                raise psycopg.OperationalError(LATE)

    def _take(self, result: PGresult, answers: list[Rows], failures: list[psycopg.Error]) -> None:
        # If an implicit transaction cannot commit, the error comes where a sync is expected. The result of the sync
        # comes after the error.
        expected = None if isinstance(self._expected[0], Sync) else self._expected.popleft()
        if isinstance(expected, bytes):
            self._to_prepare.discard(expected)
        if result.status in _FAILED:
            if not failures:
                failures.append(error_from_result(result))
        elif isinstance(expected, bytes):
            self._prepared.add(expected)
        elif expected:
            self._reader.set_pgresult(result)
            answers.append(self._reader.load_rows(0, result.ntuples, tuple))


def _watch(socket: int) -> Callable[[int, float], bool]:
    """Return a function that waits for an event, with a timeout. It uses poll(): selectors add 20 µs to each wait."""
    if not hasattr(select, "poll"):
        return partial(_select, socket)
    reads, both = select.poll(), select.poll()
    reads.register(socket, select.POLLIN)
    both.register(socket, select.POLLIN | select.POLLOUT)

    def comes(event: int, seconds: float) -> bool:
        poll = both if event & EVENT_WRITE else reads
        return bool(poll.poll(math.ceil(seconds * 1000)))

    return comes


def _select(socket: int, event: int, seconds: float) -> bool:
    """Wait for an event on Windows, which has no poll(). Elsewhere select() cannot wait for descriptors above 1023."""
    return any(select.select([socket], [socket] if event & EVENT_WRITE else [], [], seconds))
