"""Run one operation in one transaction, with as few round trips as possible.

    the first round trip is final    no BEGIN: the pipeline is an implicit transaction, so one round trip is enough
    the last of several is final     BEGIN is sent with the first, COMMIT with the last
    none is final                    BEGIN is sent with the first, COMMIT in a round trip of its own
    the operation only reads         each round trip is its own transaction: READ COMMITTED would give several round
                                     trips no common snapshot either

Topics are announced after the commit, in the same flush but in a separate transaction. A NOTIFY inside the writing
transaction would hold a lock of the whole server until the commit is on disk.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

import psycopg

from perdure.errors import InternalError
from perdure.internal import failpoints
from perdure.ops.op import Access, Answers, Op, Priority, Query, RoundTrip
from perdure.store.drive import drive_within
from perdure.store.postgres.adapt import Statement
from perdure.store.postgres.session import STATEMENT_SECONDS, Session, SocketWaits, Sync

T = TypeVar("T")

# In bytes. NOTIFY fails if a payload has 8000 bytes or more. A topic above this limit is not sent: listeners also poll.
_LONGEST_TOPIC: Final = 7000

NOTIFY = """
SELECT pg_catalog.pg_notify(%(channel)s, topic)
  FROM pg_catalog.json_array_elements_text(CAST(CAST(%(topics)s AS text) AS json)) AS topic
"""

_log = logging.getLogger("perdure.store")


# Each writing statement was written for a certain index. Its plan is made once per connection, perhaps while the table
# is empty, and kept. So sequential and bitmap scans are off. Index-only scans are off too: after a vacuum, PostgreSQL
# may prefer one of another index, followed by a sort. JIT compilation would take longer than such a statement runs.
_PLANS: Mapping[str, str] = {
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_indexonlyscan": "off",
}


def _settings(statement: int, lock: int, idle: int, plans: Mapping[str, str] | None = None) -> Statement:
    """The statement that sets timeouts, in seconds, and planner settings.

    Its parameter ``local`` says whether the settings end with the transaction. They must end with it if a pooler shares
    the backend.
    """
    settings = {
        "statement_timeout": f"{statement}s",
        "lock_timeout": f"{lock}s",
        "idle_in_transaction_session_timeout": f"{idle}s",
        **(plans or {}),
    }
    calls = (f"pg_catalog.set_config('{name}', '{value}', %(local)s)" for name, value in settings.items())
    return Statement.parse(f"SELECT {', '.join(calls)}")


_BEGIN = Statement.parse("BEGIN ISOLATION LEVEL READ COMMITTED")
_COMMIT = Statement.parse("COMMIT")
_ROLLBACK = Statement.parse("ROLLBACK")
_NOTIFY = Statement.parse(NOTIFY)
# A normal read is planned anew each time, for its own filters and for the table as it is now. Planning the search for
# limited jobs, which is urgent, took twice as long as the search itself.
READ_SETTINGS = _settings(STATEMENT_SECONDS, 5, 30, {"plan_cache_mode": "force_custom_plan"})
WRITE_SETTINGS: Mapping[Priority, Statement] = {
    "normal": _settings(STATEMENT_SECONDS, 5, 30, _PLANS),
    "urgent": _settings(10, 3, 10, _PLANS),
    # A heartbeat that waits longer than its lease is useless.
    "heartbeat": _settings(5, 2, 5, _PLANS),
}


def notice(channel: str, topics: Iterable[str]) -> dict[str, str] | None:
    """The parameters of NOTIFY; None if there is no topic to announce."""
    short = sorted(topic for topic in topics if len(topic.encode(errors="replace")) <= _LONGEST_TOPIC)
    return {"channel": channel, "topics": json.dumps(short)} if short else None


class TooLong(Exception):
    """An operation needs more than one round trip, although its transaction is ``at_once``."""


class Transaction:
    """One run of an operation on a session. Once ``run`` has returned, ``wake`` holds the announced topics.

    ``at_once``: raise TooLong unless one round trip is enough, so that no row stays locked between two round trips.
    """

    def __init__(
        self,
        session: Session,
        statements: Mapping[str, Statement],
        *,
        access: Access,
        priority: Priority,
        now: int | None,
        channel: str,
        at_once: bool = False,
    ) -> None:
        self._session = session
        self._statements = statements
        self._reads = access == "read"
        self._settings = READ_SETTINGS if self._reads and priority == "normal" else WRITE_SETTINGS[priority]
        self._now = now
        self._channel = channel
        self._at_once = at_once
        self._explicit = False
        self._begun = False
        self._ended = False
        self._announced: frozenset[str] = frozenset()
        self.wake: frozenset[str] = frozenset()

    def run(self, op: Op[T]) -> SocketWaits[T]:
        try:
            value = yield from drive_within(op, self._answer)
        except BaseException as error:
            yield from self._undo(error)
            raise
        yield from self._end()
        return value

    def _answer(self, trip: RoundTrip) -> SocketWaits[Answers]:
        self.wake |= trip.wake
        if not trip.queries and not (trip.final and self._begun):
            return []
        if self._ended:
            raise InternalError("An operation went on after its final round trip.")
        complete = trip.final or self._reads
        if self._at_once and not complete:
            raise TooLong
        if not self._begun:
            self._begin(complete=complete)
        for query in trip.queries_for("server"):
            self._send(query)
        answers = yield from self._commit() if complete else self._round_trip()
        self._ended = trip.final
        return trip.answers_of("server", answers)

    def _begin(self, *, complete: bool) -> None:
        self._begun = True
        # An implicit transaction has the default isolation level of the role or the database, which may not be READ
        # COMMITTED.
        self._explicit = not (complete and self._session.reads_committed)
        if self._explicit:
            self._session.send(_BEGIN, rows=False)
        session = self._session
        if session.settings is not self._settings:
            # Behind a pooler, settings must be local: our next transaction may run on another backend, and another
            # client's transaction may run on this backend.
            session.send(self._settings, {"local": not session.prepares}, rows=False)

    def _send(self, query: Query) -> None:
        self._session.send(self._statements[query.name], {**query.params, "now": self._now})

    def _round_trip(self) -> SocketWaits[Answers]:
        self._session.sync()
        return (yield from self._session.answer())

    def _commit(self) -> SocketWaits[Answers]:
        if failpoints.armed:
            failpoints.reach("before_commit")
        if self._explicit:
            self._session.send(_COMMIT, rows=False)
        self._session.sync()
        self._begun = self._explicit  # an implicit transaction ends at the sync, even if it fails
        self._queue_notice(Sync.OWED)  # not waiting for NOTIFY saves a fifth of the time of a single enqueue
        answers = yield from self._session.answer()
        self._begun = False
        if self._session.prepares:
            self._session.settings = self._settings
        if failpoints.armed:
            failpoints.reach("after_commit")
        return answers

    def _queue_notice(self, sync: Sync) -> bool:
        params = notice(self._channel, self.wake - self._announced)
        self._announced = self.wake
        if params is not None:
            self._session.send(_NOTIFY, params, rows=False)
            self._session.sync(sync)
        return params is not None

    def _end(self) -> SocketWaits[None]:
        if self._begun:
            yield from self._commit()
        elif self._ended:
            if self._queue_notice(Sync.OWED):
                yield from self._session.flush()
        elif self._queue_notice(Sync.AWAITED):
            yield from self._await_notice()

    def _await_notice(self) -> SocketWaits[None]:
        """Wait for NOTIFY. A failure is only logged, because workers also poll."""
        try:
            yield from self._session.answer()
        except psycopg.Error as error:
            _log.debug("NOTIFY failed: %s", error.sqlstate or type(error).__name__)

    def _undo(self, error: BaseException) -> SocketWaits[None]:
        """Roll back, and leave the session clean or marked as broken."""
        if not isinstance(error, Exception):
            self._session.broken = True
        if not self._begun:
            return
        self._session.settings = None  # settings made in a transaction are rolled back with it
        if self._session.broken:
            return
        try:
            self._session.send(_ROLLBACK, rows=False)
            yield from self._round_trip()
        except psycopg.Error:
            self._session.broken = True
