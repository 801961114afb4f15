"""Stops handlers if the worker's lease ran out before it was renewed, because other workers may start their jobs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from time import monotonic
from typing import Protocol

from perdure.worker.attempt import Attempt

_log = logging.getLogger("perdure.worker")


class Renewals(Protocol):
    """The part of the heartbeat that the watch needs. Times are those of this process's monotonic clock."""

    @property
    def renewed_at(self) -> float:
        """When the last successful renewal was sent. In the database, the lease begins at this time or later."""
        ...

    @property
    def failing_since(self) -> float | None:
        """The time at which the heartbeat sent the oldest query that was not answered; None if all were answered.

        Only queries after the last renewal count.
        """
        ...


class LeaseWatch:
    """Watches the lease in the event loop. The heartbeat cannot do this, because its thread waits for the database."""

    def __init__(self, renewals: Renewals, attempts: Iterable[Attempt], *, lease: float) -> None:
        self._renewals = renewals
        self._attempts = attempts
        self._lease = lease

    async def run(self) -> None:
        stopped_at: float | None = None
        while True:
            renewed_at = self._renewals.renewed_at
            await asyncio.sleep(max(renewed_at + self._lease - monotonic(), self._lease / 30))
            if stopped_at != renewed_at and self._is_over():
                stopped_at = renewed_at  # do not stop handlers again before the next renewal
                self._stop_handlers()

    def _is_over(self) -> bool:
        """Whether the lease has run out, and the heartbeat has tried in vain for a third of the lease.

        After the process was suspended, usually only the first condition holds. The handlers then continue until the
        heartbeat has asked the database which leases still hold.
        """
        now, since = monotonic(), self._renewals.failing_since
        over = now >= self._renewals.renewed_at + self._lease
        return over and since is not None and now - since >= self._lease / 3

    def _stop_handlers(self) -> None:
        running = [attempt for attempt in self._attempts if not attempt.ended]
        if running:
            _log.warning(
                "The lease of this worker could not be renewed for %g s: stopping %d handlers, "
                "because other workers may start their jobs",
                self._lease,
                len(running),
            )
        for attempt in running:
            attempt.stop("unrenewed")
