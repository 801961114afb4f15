"""Receive notifications of other processes: LISTEN on a separate connection.

A pooler in transaction mode accepts LISTEN, but delivers no notifications of other connections. It may deliver
notifications that the listening connection itself sends, because it may assign the same backend again. So each new
connection is tested with a notification, which another connection sends while the new one is idle.
"""

from __future__ import annotations

import logging
import random
import secrets
from collections.abc import Callable
from contextlib import closing
from time import monotonic
from typing import Any, Final

import psycopg
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, ExecStatus

from perdure.errors import PerdureError
from perdure.ops.topics import ANYTHING
from perdure.store.listener_thread import ListenerThread, Waiter
from perdure.store.postgres.connect import connect

# After this many seconds without a notification, send a query: a dead network reports no error by itself.
PROBE_SECONDS = 15.0
# How long to wait for the answer to that query, or for the notification of the test.
ANSWER_SECONDS = 5.0
# If notifications do not arrive, test again after this time: the pooler may have been removed, or the standby promoted.
DEAF_SECONDS = 300.0

_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 10.0

_log = logging.getLogger("perdure.store")


class PostgresListener(ListenerThread):
    """Receives notifications on ``channel``. ``announce`` notifies a given channel from another connection."""

    def __init__(self, url: str, channel: str, *, announce: Callable[[str], None]) -> None:
        super().__init__("perdure-postgres-listener")
        self._url = url
        self._channel = channel
        self._announce = announce
        self._failures = 0
        self._deaf = False
        self._attending = False
        self._next_try = 0.0

    @property
    def hears(self) -> bool:
        return self._attending and super().hears

    def listen(self, waiter: Waiter) -> None:
        while True:
            while (pause := self._next_try - monotonic()) > 0:
                waiter.wait(pause)
            try:
                with closing(connect(self._url)) as connection:
                    self._attend(_ListenConnection(connection, waiter))
            except _NothingArrives:
                self._note_deaf()
            except (psycopg.Error, PerdureError, OSError) as error:
                self._note_failure(error)
            finally:
                self._attending = False

    def _attend(self, line: _ListenConnection) -> None:
        self._test(line)
        self._note_success()
        self._attending = True
        # Notifications sent before this connection listened are lost, so wake every listener.
        self.notify(frozenset([ANYTHING]))
        while True:
            if notices := line.wait_for_notices(PROBE_SECONDS):
                self.notify(frozenset(topic or ANYTHING for _, topic in notices))
            else:
                line.ask("SELECT 1")

    def _test(self, line: _ListenConnection) -> None:
        """Begin to listen, and test whether notifications arrive.

        The test has its own channel, because a test on the shared channel would wake the listeners of all processes.
        """
        own = f"{self._channel}_{secrets.token_hex(8)}"
        try:
            line.ask(f'LISTEN "{self._channel}"; LISTEN "{own}"')
        except psycopg.Error:
            if line.is_lost:
                raise
            raise _NothingArrives from None
        self._announce(own)
        until = monotonic() + ANSWER_SECONDS
        while all(channel != own for channel, _ in line.wait_for_notices(until - monotonic())):
            if monotonic() >= until:
                raise _NothingArrives
        line.ask(f'UNLISTEN "{own}"')

    def _note_success(self) -> None:
        if self._deaf or self._failures > 1:
            _log.warning("Notifications arrive again")
        self._deaf, self._failures = False, 0

    def _note_deaf(self) -> None:
        if not self._deaf:
            _log.warning(
                "Notifications do not arrive here (a pooler?), so jobs are found by polling; "
                "set listen_url to a direct address"
            )
        self._deaf, self._failures = True, 0
        self._next_try = monotonic() + DEAF_SECONDS * random.uniform(0.5, 1.0)

    def _note_failure(self, error: Exception) -> None:
        self._failures += 1
        # Warn only at the second failure: it is normal that a connection is lost now and then.
        if self._failures == 2 and not self._deaf:
            reason = getattr(error, "sqlstate", None) or type(error).__name__
            if isinstance(error, PerdureError):
                reason = str(error).rstrip(".")  # a separate listen_url may be permanently wrong
            _log.warning("Notifications are lost (%s); jobs are found by polling until they are back", reason)
        longest = DEAF_SECONDS if self._deaf else _LONGEST_PAUSE
        pause = min(_FIRST_PAUSE * 2.0 ** min(self._failures, 30), longest)
        self._next_try = monotonic() + pause * random.uniform(0.5, 1.0)


class _NothingArrives(Exception):
    """The server or pooler refuses LISTEN, or accepts it without effect."""


class _ListenConnection:
    """A connection for LISTEN. Every wait has a time limit, and is interrupted if the thread should end."""

    def __init__(self, connection: psycopg.Connection[Any], waiter: Waiter) -> None:
        self._pgconn = connection.pgconn
        self._waiter = waiter

    @property
    def is_lost(self) -> bool:
        return self._pgconn.status != ConnStatus.OK

    def ask(self, text: str) -> None:
        """Send statements and wait until they are done. Their results are ignored."""
        failure: psycopg.Error | None = None
        self._pgconn.send_query(text.encode())
        # Such a short text fits into a socket's buffer, unless the connection is stuck.
        if self._pgconn.flush():
            raise psycopg.OperationalError("the connection is stuck")
        until = monotonic() + ANSWER_SECONDS
        while (result := self._result(until)) is not None:
            if result.status == ExecStatus.FATAL_ERROR:
                failure = failure or error_from_result(result)
        if failure is not None:
            raise failure
        if self.is_lost:
            raise psycopg.OperationalError("the connection is lost")

    def wait_for_notices(self, seconds: float) -> list[tuple[str, str]]:
        """The pending notifications as (channel, payload).

        If there are none, wait for the next, at most ``seconds``.
        """
        if notices := self._notices():
            return notices
        if self._waiter.wait(seconds, self._pgconn.socket):
            self._pgconn.consume_input()
        return self._notices()

    def _result(self, until: float) -> Any:
        while self._pgconn.is_busy():
            if monotonic() >= until:
                raise psycopg.OperationalError("no answer in time")
            if self._waiter.wait(until - monotonic(), self._pgconn.socket):
                self._pgconn.consume_input()
        return self._pgconn.get_result()

    def _notices(self) -> list[tuple[str, str]]:
        notices: list[tuple[str, str]] = []
        while (notice := self._pgconn.notifies()) is not None:
            notices.append((notice.relname.decode(), notice.extra.decode()))
        return notices
