"""How often and how long an operation is run again before its caller is told."""

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
from perdure.store.postgres_errors import Cure, Diagnosis, diagnose

T = TypeVar("T")

# What is missing here is tried until patience runs out.
_MOST_TRIES: Mapping[Cure, int] = {Cure.NONE: 0, Cure.LOOK_AGAIN: 5, Cure.AFRESH: 3}
_FIRST_PAUSE: Final = 0.01
_LONGEST_PAUSE: Final = 2.0

_log = logging.getLogger("perdure.store")


class Retry:
    """Runs what may fail for a while; tells the log once when the database goes and once when it is back."""

    def __init__(self, patience: float | None, *, drop_connections: Callable[[], None]) -> None:
        self.patience = patience
        self._drop_connections = drop_connections
        self._stopped = Event()
        self._away = False

    def until_done(
        self, run: Callable[[], T], *, wanted: Callable[[], bool] = lambda: True, urgent: bool = False
    ) -> T:
        """Run until it succeeds, or nothing helps, or patience runs out, or nobody waits for it any more.

        What is urgent does not wait again for a row that somebody holds.
        """
        deadline = math.inf if self.patience is None else monotonic() + self.patience
        tries: Counter[Cure] = Counter()
        while True:
            self.refuse_if_stopped()
            try:
                value = run()
            except psycopg.Error as error:
                diagnosis = diagnose(error)
            else:
                self._note_back()
                return value
            tries[diagnosis.cure] += 1
            pause = _pause(tries.total())
            if tries[diagnosis.cure] > _MOST_TRIES.get(diagnosis.cure, math.inf):
                raise self._marked(diagnosis.error)
            if urgent and diagnosis.cure is Cure.WAIT:
                raise diagnosis.error
            if monotonic() + pause > deadline or not wanted():
                raise self._marked(diagnosis.error)
            self._prepare_next(diagnosis, tries[diagnosis.cure])
            self._stopped.wait(pause)

    def refuse_if_stopped(self) -> None:
        if self._stopped.is_set():
            raise StoreClosed

    def stop(self) -> None:
        """Whoever waits for the next try is told that the store is closed."""
        self._stopped.set()

    def forget(self) -> None:
        """In a forked child: another thread may have held the event's lock."""
        stopped, self._stopped = self._stopped, Event()
        if stopped.is_set():
            self._stopped.set()

    def _prepare_next(self, diagnosis: Diagnosis, tries: int) -> None:
        if diagnosis.cure in (Cure.RECONNECT, Cure.AFRESH):
            self._drop_connections()
        # A connection that was cut while idle is no news; a second one that fails is.
        if diagnosis.cure is Cure.RECONNECT and tries > 1 and not self._away:
            self._away = True
            _log.warning("The database is away (%s); trying again", diagnosis.sqlstate or "connection lost")

    def _marked(self, error: PerdureError) -> PerdureError:
        if isinstance(error, StoreAway):
            error.told = self._away
        return error

    def _note_back(self) -> None:
        if self._away:
            self._away = False
            _log.warning("The database is back")


def _pause(tries: int) -> float:
    """Doubling, and never in step with others."""
    return random.uniform(0.5, 1.0) * min(_FIRST_PAUSE * 2.0 ** min(tries, 30), _LONGEST_PAUSE)
