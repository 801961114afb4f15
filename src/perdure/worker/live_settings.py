"""The settings of queues that a worker needs. It reads them once a second, and at once if a change is announced.

PostgreSQL announces a change to all workers, SQLite only to the workers of the same process.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from contextlib import suppress

from perdure.model.job import SECOND, Claimed, Span
from perdure.model.queue_settings import effective_timeout
from perdure.ops.queues import LiveSettings, list_live_settings
from perdure.store.store import Store
from perdure.worker.database_errors import NOT_DONE
from perdure.worker.handler import Handler
from perdure.worker.health import Health

INTERVAL = 1.0
"""Seconds between two reads."""

AFTER = 0.01
"""Seconds between the end of a pause and the claim: a claim that comes too early finds no jobs."""


class QueueSettingsReader:
    """Reads live settings of queues, in the event loop's thread.

    ``opened``: called when a pause of a queue has ended.
    """

    def __init__(self, store: Store, health: Health, opened: Callable[[], None]) -> None:
        self._store = store
        self._health = health
        self._opened = opened
        self._changed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._timeouts: Mapping[str, Span] = {}

    def timeout_of(self, job: Claimed, handler: Handler) -> Span | None:
        """The timeout of an attempt that starts now."""
        if not self._timeouts:
            return job.timeout
        of_queue = self._timeouts.get(job.queue)
        return effective_timeout(job.timeout, declared=handler.declares_timeout, of_queue=of_queue)

    def read_now(self) -> None:
        """Read the settings now, because they have changed."""
        self._changed.set()

    async def run(self) -> None:
        while True:
            # The interval is random, so that workers do not all read at the same time.
            with suppress(TimeoutError):
                async with asyncio.timeout(random.uniform(0.75, 1.0) * INTERVAL):
                    await self._changed.wait()
            self._changed.clear()
            await self.read()

    async def read(self) -> None:
        """Read the settings. If the database does not answer, the settings of the last read stay in effect."""
        asked = self._health.ask()
        try:
            live = await self._store.aperform(list_live_settings)
        except NOT_DONE as error:
            await asyncio.sleep(self._health.failed(error))
            return
        self._health.worked(asked)
        self._timeouts = live.timeouts
        self._wake_at_end_of_pause(live)

    def _wake_at_end_of_pause(self, live: LiveSettings) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if live.opens_in is not None and live.opens_in < 2 * INTERVAL * SECOND:
            delay = live.opens_in / SECOND + AFTER
            self._timer = asyncio.get_running_loop().call_later(delay, self._opened)
