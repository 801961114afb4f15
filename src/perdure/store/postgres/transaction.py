"""One operation, one transaction, in as few round trips as its steps allow.

    a final step first      the pipeline itself is the transaction: everything in one round trip
    more steps              BEGIN travels with the first, COMMIT with the final one
    no final step           COMMIT has a round trip of its own
    an operation that reads each step is a transaction: READ COMMITTED promises no more

Topics are announced behind the commit, in the same flush but as a transaction of their own: inside the
writing one, NOTIFY would hold a lock of the whole server until the commit is on the disk.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import Final, TypeVar

import psycopg

from perdure.errors import InternalError
from perdure.internal import failpoints
from perdure.ops.op import Answers, Kind, Op, Query, RoundTrip
from perdure.store.postgres.adapt import Statement
from perdure.store.postgres.session import STATEMENT_SECONDS, Session, Sync, Waiting

T = TypeVar("T")

# A payload of 8000 bytes makes NOTIFY fail. Whoever misses a longer topic polls.
_LONGEST_TOPIC: Final = 7000

NOTIFY = """
SELECT pg_catalog.pg_notify(%(channel)s, topic)
  FROM pg_catalog.json_array_elements_text(CAST(CAST(%(topics)s AS text) AS json)) AS topic
"""

_log = logging.getLogger("perdure.store")


# Each statement that writes finds its rows by an index it was written for. Its plan is made once for a
# connection and kept, perhaps from when the table was empty: it must never be a scan of what has piled up
# since, nor a walk through another index, and a sort, because that one holds all that is asked for after a
# vacuum. And the compiler takes longer than such a plan runs.
_PLANS: Mapping[str, str] = {
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_indexonlyscan": "off",
}


def _settings(statement: int, lock: int, idle: int, plans: Mapping[str, str] | None = None) -> Statement:
    """Seconds of patience and ways to plan: for the session where it is our own, else for the transaction."""
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
_URGENT = _settings(10, 3, 10, _PLANS)
_SETTINGS: Mapping[Kind, Statement] = {
    # A read is planned for its own filters and for the table as it is now.
    "read": _settings(STATEMENT_SECONDS, 5, 30, {"plan_cache_mode": "force_custom_plan"}),
    "write": _settings(STATEMENT_SECONDS, 5, 30, _PLANS),
    # A heartbeat that waits as long as its lease lasts is of no use.
    "urgent": _URGENT,
    "turn": _URGENT,
    "beat": _settings(5, 2, 5, _PLANS),
}


def notice(channel: str, topics: Iterable[str]) -> dict[str, str] | None:
    """The parameters of NOTIFY, if there is anything to say."""
    short = sorted(topic for topic in topics if len(topic.encode(errors="replace")) <= _LONGEST_TOPIC)
    return {"channel": channel, "topics": json.dumps(short)} if short else None


class TooLong(Exception):
    """An operation takes more than one round trip."""


class Transaction:
    """A run of an operation on a session. ``wake`` holds the topics it announced once it has returned.

    ``at_once``: only if nothing is locked while anybody waits, which is where COMMIT travels with the first step.
    """

    def __init__(
        self,
        session: Session,
        statements: Mapping[str, Statement],
        *,
        kind: Kind,
        now: int | None,
        channel: str,
        at_once: bool = False,
    ) -> None:
        self._session = session
        self._statements = statements
        self._settings = _SETTINGS[kind]
        self._reads = kind == "read"
        self._now = now
        self._channel = channel
        self._at_once = at_once
        self._explicit = False
        self._begun = False
        self._ended = False
        self._announced: frozenset[str] = frozenset()
        self.wake: frozenset[str] = frozenset()

    def run(self, op: Op[T]) -> Waiting[T]:
        with closing(op):
            try:
                trip = next(op)
                while True:
                    trip = op.send((yield from self._answer(trip)))
            except StopIteration as end:
                yield from self._end()
                value: T = end.value
                return value
            except BaseException as error:
                yield from self._undo(error)
                raise

    def _answer(self, trip: RoundTrip) -> Waiting[Answers]:
        self.wake |= trip.wake
        if not trip.queries and not (trip.final and self._begun):
            return []
        if self._ended:
            raise InternalError("An operation went on after its final step.")
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
        # An implicit transaction has the isolation that the role or the database prescribes.
        self._explicit = not (complete and self._session.reads_committed)
        if self._explicit:
            self._session.send(_BEGIN, rows=False)
        session = self._session
        if session.settings is not self._settings:
            # Behind a pooler the next transaction may be on another backend, or somebody else's on this one.
            session.send(self._settings, {"local": not session.prepares}, rows=False)

    def _send(self, query: Query) -> None:
        self._session.send(self._statements[query.name], {**query.params, "now": self._now})

    def _round_trip(self) -> Waiting[Answers]:
        self._session.sync()
        return (yield from self._session.answer())

    def _commit(self) -> Waiting[Answers]:
        if failpoints.armed:
            failpoints.reach("before_commit")
        if self._explicit:
            self._session.send(_COMMIT, rows=False)
        self._session.sync()
        self._begun = self._explicit  # else it ends there, whatever comes of it
        self._queue_notice(Sync.OWED)  # nobody waits for the notice: a fifth off a single enqueue
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

    def _end(self) -> Waiting[None]:
        if self._begun:
            yield from self._commit()
        elif self._ended:
            if self._queue_notice(Sync.OWED):
                yield from self._session.flush()
        elif self._queue_notice(Sync.AWAITED):
            yield from self._hear_of_notice()

    def _hear_of_notice(self) -> Waiting[None]:
        """Whatever became of it: workers poll."""
        try:
            yield from self._session.answer()
        except psycopg.Error as error:
            _log.debug("NOTIFY failed: %s", error.sqlstate or type(error).__name__)

    def _undo(self, error: BaseException) -> Waiting[None]:
        """Leave the session as it was found, unless something stopped us in the middle of it."""
        if not isinstance(error, Exception):
            self._session.broken = True
        if not self._begun:
            return
        self._session.settings = None  # what was set in a transaction goes with it
        if self._session.broken:
            return
        try:
            self._session.send(_ROLLBACK, rows=False)
            yield from self._round_trip()
        except psycopg.Error:
            self._session.broken = True
