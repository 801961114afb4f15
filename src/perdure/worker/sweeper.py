"""The sweeper: periodic duties. Most duties are done only by the elected worker.

A new duty is one entry in ``Sweeper.duties``, and the operation that it performs.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Protocol

from perdure.internal import failpoints
from perdure.model.job import SECOND
from perdure.model.lifecycle import Change
from perdure.ops import browse
from perdure.ops import worker as worker_ops
from perdure.ops.queues import end_pauses
from perdure.plan.plan import arun
from perdure.worker.database_errors import DAMAGED, NOT_DONE, OUT_OF_SERVICE, is_refusal, safe_message
from perdure.worker.health import Health
from perdure.worker.hooks import Hooks
from perdure.worker.operations import WorkerOperations

NAME = "sweeper"
TICK = 1.0
"""Seconds between two sweeps."""
PAGE = 100
"""How many expired jobs are read at once to report them."""
SET_ASIDE = 5.0
"""Seconds between two searches for jobs that are due much later."""
END_PAUSES = 5.0
"""Seconds between two searches for pauses that are over. Claims ignore a pause as soon as it is over."""
LEASE = 5.0
"""Seconds that the lead lasts without a renewal. Then another worker takes over."""

_log = logging.getLogger("perdure.worker")


class Sweeping(Protocol):
    """What the sweeper needs from the worker."""

    @property
    def identity(self) -> str: ...


@dataclass(slots=True)
class Duty:
    """A piece of periodic work."""

    name: str
    run: Callable[[], Awaitable[object]]
    failure: str
    """The log message for an error that waiting does not cure. It is logged once, until the duty succeeds again."""
    interval: float = 0.0
    """The least number of seconds from one run to the next. With 0, the duty runs at every sweep."""
    leader_only: bool = True
    """Whether only the elected worker does it."""
    about_jobs: bool = True
    """Whether a single bad job can make the database refuse the statements of this duty."""
    due_at: float = 0.0
    failed: bool = False


class Sweeper:
    """Does the duties of a worker. Every worker has a sweeper, but only the elected one does the shared duties."""

    def __init__(
        self, worker: Sweeping, operations: WorkerOperations, health: Health, hooks: Hooks, *, lease: float
    ) -> None:
        self._worker = worker
        self._operations = operations
        self._store = operations.store
        self._health = health
        self._hooks = hooks
        self._lease = lease
        self._trusts_at = 0.0
        self._renew_at = 0.0
        self._led_as = ""
        self.duties = [
            Duty(
                "retire dead",
                self._retire_dead,
                "Dead workers cannot be retired",
                leader_only=False,
                about_jobs=False,
            ),
            Duty("retire silent", self._retire_silent, "Silent workers cannot be retired", about_jobs=False),
            Duty("rescue", self.rescue, "Lost jobs cannot be rescued"),
            Duty("bring back", self.bring_back, "Jobs that are due soon cannot be brought back"),
            Duty("set aside", self._set_aside, "Jobs cannot be set aside", interval=SET_ASIDE),
            Duty("expire", operations.aexpire, "Expired jobs cannot be canceled"),
            Duty("supersede", operations.asupersede, "Jobs cannot be canceled in favor of newer ones"),
            Duty("end pauses", self._end_pauses, "Pauses that are over cannot be ended", interval=END_PAUSES),
            Duty("report expired", self.report_expired, "Expired jobs cannot be reported", leader_only=False),
        ]
        """The duties, in the order in which they are done."""
        self.swept = asyncio.Event()
        """Set after the first complete sweep."""

    async def run(self) -> None:
        while True:
            asked = self._health.ask()
            try:
                refusal = await self.sweep()
            except NOT_DONE as error:
                self._postpone_retirement()
                await asyncio.sleep(self._health.failed(error))
            else:
                self.swept.set()
                if refusal is None:
                    self._health.worked(asked)
                else:
                    await asyncio.sleep(self._health.failed(refusal))
            # Vary the pause, so that workers do not sweep at the same time.
            await asyncio.sleep(random.uniform(0.75, 1.0) * TICK)

    async def sweep(self) -> Exception | None:
        """Do the duties that are due. Raise an outage, and log ``DAMAGED`` errors.

        Some errors may be an outage, or may only mean that the database refuses one bad job. After such an error, the
        other duties are still done, and the last such error is returned.
        """
        leads: bool | None = None
        refusal: Exception | None = None
        for duty in self.duties:
            now = monotonic()
            if now < duty.due_at:
                continue
            if duty.leader_only:
                leads = await self._lead() if leads is None else leads
                self._note_wait(now)
                if not leads:
                    continue
            try:
                await duty.run()
                duty.failed = False
            except DAMAGED as error:
                if not duty.failed:
                    duty.failed = True
                    _log.error("%s: %s", duty.failure, safe_message(error), extra={"duty": duty.name})
            except OUT_OF_SERVICE as error:
                if not (duty.about_jobs and is_refusal(error)):
                    raise
                refusal = error
            self._note_wait(now)
            duty.due_at = now + duty.interval
        return refusal

    def _note_wait(self, began: float) -> None:
        """Postpone retirement if a call took long, because the store probably waited for a database that was away."""
        if self._waits_long(began):
            self._postpone_retirement()

    def _waits_long(self, began: float) -> bool:
        """Whether so much time has passed since ``began`` that leases may have expired.

        A worker sends three heartbeats per lease. So at ``began``, the lease of each live worker had at least about two
        thirds of its time left. Half a lease is a safe limit.
        """
        return monotonic() - began > self._lease / 2

    def _postpone_retirement(self) -> None:
        """Retire no silent worker for the time of one lease, because other workers could not send heartbeats either."""
        self._trusts_at = monotonic() + self._lease

    async def _retire_silent(self) -> None:
        if failpoints.armed:
            failpoints.reach("before_rescue")
        began = monotonic()
        if began >= self._trusts_at:
            # Never retire this worker itself: after a suspension it may sweep before it sends its heartbeat.
            await self._operations.aretire_silent(
                sweeper=self._worker.identity, wanted=lambda: not self._waits_long(began)
            )

    async def rescue(self) -> None:
        """Free the jobs of retired workers."""
        if rescued := await self._operations.arescue(silent=False):
            if failpoints.armed:
                failpoints.reach("after_rescue")
            _log.warning("Rescued %d jobs of workers that fell silent", len(rescued))
            await self._report_rescued(rescued)

    async def bring_back(self) -> None:
        """Bring back the jobs that were set aside and are due soon."""
        await arun(self._store, self._operations.sweeps.bring_back())

    async def _set_aside(self) -> None:
        await arun(self._store, self._operations.sweeps.set_aside())

    async def _end_pauses(self) -> None:
        await self._store.aperform(end_pauses)

    async def report_expired(self) -> None:
        """Report jobs that were canceled because they expired, by a sweep or by a claim of this worker."""
        expired = self._operations.sweeps.expired
        if self._hooks.quiet:
            expired.clear()
        while expired:
            page: list[str] = []
            with suppress(IndexError):  # none is left, or another worker of this app has taken the rest
                while len(page) < PAGE:
                    page.append(expired.popleft())
            try:
                rows = await self._store.aperform(browse.get_jobs, page)
            except OUT_OF_SERVICE:
                expired.extendleft(reversed(page))
                raise
            for row in rows:
                if row is not None:
                    self._hooks.expired(row)

    async def _report_rescued(self, rescued: Sequence[Change]) -> None:
        if self._hooks.quiet:
            return
        rows = await self._store.aperform(browse.get_jobs, [change.id for change in rescued])
        for change, row in zip(rescued, rows, strict=True):
            if row is None:
                continue
            self._hooks.row("rescued", row)
            if change.state == "failed":
                self._hooks.row("failed", row)
            elif change.state == "canceled":
                self._hooks.row("canceled", row)

    async def _retire_dead(self) -> None:
        """Retire workers that have certainly died, without waiting for their leases to end.

        This is possible only if all workers run on one host.
        """
        if not self._store.detects_dead_workers:
            return
        workers = await self._store.aperform(worker_ops.list_workers)
        others = [worker.id for worker in workers if worker.id != self._worker.identity]
        for worker in self._store.absent(others):
            await self._operations.aretire(worker)
            self._renew_at = 0.0  # ask for the lead again

    async def _lead(self) -> bool:
        """Whether this worker is the elected one.

        Its lead is renewed well before it ends, but not at every sweep, because a renewal is a write.
        """
        identity = self._worker.identity
        if identity == self._led_as and monotonic() < self._renew_at:
            return True
        asked = monotonic()
        leads = await self._operations.alead(NAME, identity, lease=int(LEASE * SECOND))
        self._led_as, self._renew_at = identity, asked + LEASE / 2 if leads else 0.0
        return leads
