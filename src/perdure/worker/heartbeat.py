"""The heartbeat. It has its own thread, so that it renews the lease even while a handler blocks the event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Protocol

from perdure.errors import PerdureError
from perdure.internal import failpoints
from perdure.model.job import Lease
from perdure.ops.worker import Beat
from perdure.worker.database_errors import OUT_OF_SERVICE
from perdure.worker.health import Health
from perdure.worker.operations import WorkerOperations

CHECK_INTERVAL = 0.25
"""The most seconds to wait after a check that is not a regular heartbeat, so that one check serves many requests."""

CANCEL_POLL = 1.0
"""Seconds between two checks for requested cancels while jobs run and notifications do not arrive."""

_log = logging.getLogger("perdure.worker")


class Beating(Protocol):
    """What the heartbeat needs from the worker."""

    @property
    def identity(self) -> str: ...

    def leases(self) -> Sequence[Lease]:
        """The leases of the jobs that the worker runs. Called from the heartbeat's thread."""
        ...

    def on_beat(self, identity: str, before: Sequence[Lease], beat: Beat) -> None:
        """Handle the database's answer. ``before``: the worker's leases before the query. Called in the loop."""
        ...

    def renew_identity(self) -> None:
        """Register again, because the worker was retired. Called from the heartbeat's thread."""
        ...


class Heartbeat:
    """Renews the lease of a worker, and reads what the database believes the worker runs."""

    def __init__(
        self, worker: Beating, operations: WorkerOperations, health: Health, *, interval: float
    ) -> None:
        self._worker = worker
        self._operations = operations
        self._health = health
        self._interval = interval
        self._loop = asyncio.get_running_loop()
        self._check_requested = threading.Event()
        self._stopped = threading.Event()
        self._over = asyncio.Event()
        self.error: BaseException | None = None
        self.registers = True
        """Whether to register the worker again if it was retired."""
        self.renewed_at = 0.0
        """When the last successful renewal was sent."""
        self.failing_since: float | None = None
        """When the first unanswered query since the last renewal was sent. None if all queries were answered."""
        self._thread = threading.Thread(target=self._run, name="perdure-heartbeat", daemon=True)

    def start(self, died: Callable[[], None], *, registered_at: float) -> None:
        """Start the thread. ``died`` is called in the loop if the thread ends with an error."""
        self.renewed_at = registered_at
        self._died = died
        self._thread.start()

    def check_now(self) -> None:
        """Query the database soon, because a cancel may have been requested. Called from any thread."""
        self._check_requested.set()

    async def stop(self) -> None:
        self.end()
        await self._over.wait()

    def end(self) -> None:
        """Send no further heartbeat once the one under way is answered."""
        self._stopped.set()
        self._check_requested.set()

    def _run(self) -> None:
        try:
            self._beat_until_stopped()
        except BaseException as error:
            self.error = error
            _log.exception("The heartbeat ended by an error")
            self._in_loop(self._died)
        finally:
            self._in_loop(self._over.set)

    def _beat_until_stopped(self) -> None:
        due = monotonic() + self._interval
        while not self._stopped.is_set():
            requested = self._check_requested.wait(max(0.0, min(due - monotonic(), CANCEL_POLL)))
            self._check_requested.clear()
            if self._stopped.is_set():
                return
            beats = monotonic() >= due
            if not (beats or requested or self._polls):
                continue
            asked = self._health.ask()
            try:
                self._ask(renews=beats)
                self._health.worked(asked)
            except OUT_OF_SERVICE as error:
                due = monotonic() + min(self._health.failed(error), self._interval)
                continue
            except PerdureError:
                _log.exception("A heartbeat failed")
            if beats:
                due = monotonic() + self._interval
            else:
                self._pause()

    @property
    def _polls(self) -> bool:
        """Whether to poll for cancels between heartbeats: jobs run, and no notification would arrive."""
        return bool(self._worker.leases()) and not self._operations.store.hears_others

    def _ask(self, *, renews: bool) -> None:
        identity, before = self._worker.identity, list(self._worker.leases())
        if failpoints.armed:
            failpoints.reach("before_heartbeat")
        failing_since, asked_at = self.failing_since, monotonic()
        self.failing_since = failing_since or asked_at
        beat = self._operations.heartbeat(identity) if renews else self._operations.peek(identity)
        if renews:
            self.renewed_at = asked_at
        self.failing_since = None if renews else failing_since
        if failpoints.armed:
            failpoints.reach("after_heartbeat")
        if not beat.live and self.registers and not self._stopped.is_set():
            asked_at = monotonic()
            self._worker.renew_identity()
            self.renewed_at = asked_at
        self._in_loop(self._worker.on_beat, identity, before, beat)

    def _pause(self) -> None:
        """Wait before the next check, because on SQLite every commit of another process requests a check."""
        self._stopped.wait(min(CHECK_INTERVAL, self._interval / 4))

    def _in_loop(self, function: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            self._stopped.set()  # the loop was closed
