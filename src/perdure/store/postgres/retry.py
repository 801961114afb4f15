"""Retries: how often and how long an operation is run again before its caller gets the error."""

from __future__ import annotations

import logging
import math
import random
from collections import Counter
from collections.abc import Callable, Mapping
from threading import Event
from time import monotonic
from typing import Final, TypeVar

import psycopg

from perdure.errors import PerdureError, StoreAway, StoreClosed
from perdure.store.postgres.errors import FORBIDDEN, Cure, Diagnosis, diagnose

T = TypeVar("T")

# A cure that is not in this mapping is tried until patience runs out.
_MOST_TRIES: Mapping[Cure, int] = {Cure.NONE: 0, Cure.LOOK_AGAIN: 5, Cure.AFRESH: 3}
_FIRST_PAUSE: Final = 0.01
_LONGEST_PAUSE: Final = 2.0

_log = logging.getLogger("perdure.store")


class Retrier:
    """Runs a function again while that may help. Logs once that the database went away, and once that it is back."""

    def __init__(
        self,
        patience: float | None,
        *,
        drop_connections: Callable[[], None],
        patience_away: float | None = None,
        server: Callable[[], str] = str,
        forbidden: Callable[[psycopg.Error], PerdureError] = lambda error: diagnose(error).error,
    ) -> None:
        """``patience``: for how many seconds to try; None means for ever.

        ``patience_away``: the limit while the database is away, if it is shorter.

        ``server``: returns the server's name for messages.

        ``forbidden``: translates an error about a missing right.
        """
        self.patience = patience
        limits = [limit for limit in (patience, patience_away) if limit is not None]
        self._patience_away = min(limits, default=None)
        self._server = server
        self._forbidden = forbidden
        self._drop_connections = drop_connections
        self._stopped = Event()
        self._away = False

    def until_done(
        self,
        run: Callable[[], T],
        *,
        wanted: Callable[[], bool] = lambda: True,
        urgent: bool = False,
        retries: int | None = None,
        failed: psycopg.Error | None = None,
    ) -> T:
        """Call ``run`` until it succeeds, a retry cannot help, patience runs out, or ``wanted`` returns False.

        ``urgent``: do not wait a second time for a row lock. ``retries``: how often to call ``run`` again after the
        server refused it; None means: as long as that may help. ``failed``: the error of a first try that the event
        loop made.
        """
        began = monotonic()
        tries: Counter[Cure] = Counter()
        while True:
            self.refuse_if_stopped()
            try:
                if failed is not None:
                    raise failed
                value = run()
            except psycopg.Error as error:
                diagnosis, failed = diagnose(error), None
                if diagnosis.sqlstate == FORBIDDEN:
                    diagnosis = diagnosis._replace(error=self._forbidden(error))
                diagnosis.error.noting(error)
            else:
                self.note_success()
                return value
            tries[diagnosis.cure] += 1
            pause = _pause(tries.total())
            if tries[diagnosis.cure] > _most_tries(diagnosis, retries):
                raise self.error_for(diagnosis)
            if urgent and diagnosis.cure is Cure.WAIT:
                raise self.error_for(diagnosis)
            if monotonic() + pause > began + self._patience_with(diagnosis.cure) or not wanted():
                raise self.error_for(diagnosis)
            self._prepare_next(diagnosis, tries[diagnosis.cure])
            self._stopped.wait(pause)

    def error_for(self, diagnosis: Diagnosis) -> PerdureError:
        """The error for the caller. It names host and port, which are often misconfigured and never secret."""
        error = diagnosis.error
        if not isinstance(error, StoreAway) or error.answered:
            return error
        if server := self._server():
            error = StoreAway(f"{str(error).rstrip('.')} ({server}).")
        error.told = self._away
        return error

    def use_worker_patience(self) -> None:
        """From now on, use the full patience while the database is away."""
        self._patience_away = self.patience

    def refuse_if_stopped(self) -> None:
        if self._stopped.is_set():
            raise StoreClosed

    def stop(self) -> None:
        """Raise StoreClosed in calls that wait for their next try."""
        self._stopped.set()

    def forget(self) -> None:
        """Replace the event in a forked child: another thread may have held its lock."""
        stopped, self._stopped = self._stopped, Event()
        if stopped.is_set():
            self._stopped.set()

    def _prepare_next(self, diagnosis: Diagnosis, tries: int) -> None:
        if diagnosis.cure in (Cure.RECONNECT, Cure.AFRESH):
            self._drop_connections()
        # Warn only at the second failure: the first may be a connection that was cut while idle. A server that refuses
        # a statement is not away: reads may succeed.
        away = diagnosis.cure is Cure.RECONNECT and not diagnosis.answered
        if away and tries > 1 and not self._away:
            self._away = True
            _log.warning("The database is away (%s, %s); trying again", diagnosis.reason, self._server())

    def _patience_with(self, cure: Cure) -> float:
        patience = self._patience_away if cure is Cure.RECONNECT else self.patience
        return math.inf if patience is None else patience

    def note_success(self) -> None:
        if self._away:
            self._away = False
            _log.warning("The database is back")


def _most_tries(diagnosis: Diagnosis, retries: int | None) -> float:
    limit = _MOST_TRIES.get(diagnosis.cure, math.inf)
    if retries is None or not diagnosis.answered:
        return limit
    return retries if limit == math.inf else min(limit, retries + 1)


def _pause(tries: int) -> float:
    """Seconds until the next try: doubling, with jitter."""
    return random.uniform(0.5, 1.0) * min(_FIRST_PAUSE * 2.0 ** min(tries, 30), _LONGEST_PAUSE)
