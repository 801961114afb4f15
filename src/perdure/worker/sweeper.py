"""What one worker does for all: rescue the jobs of those that fell silent, cancel what expired."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Protocol

from perdure.internal import failpoints
from perdure.model.job import SECOND
from perdure.model.lifecycle import Change
from perdure.ops import browse
from perdure.ops import worker as worker_ops
from perdure.worker.health import Health
from perdure.worker.hooks import Hooks
from perdure.worker.operations import WorkerOperations
from perdure.worker.refusals import DAMAGED, NOT_DONE, OUT_OF_SERVICE, tellable

NAME = "sweeper"
TICK = 1.0
PAGE = 100
"""Expired jobs that are read at once, to tell of them."""
LEASE = 5.0
"""Seconds the lead lasts without renewal: within these another takes over."""

_log = logging.getLogger("perdure.worker")


class Sweeping(Protocol):
    @property
    def identity(self) -> str: ...


class Sweeper:
    """Runs in every worker; the one that is elected sweeps."""

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
        self._failed: set[str] = set()
        """Parts of a sweep that failed for good, and were told of."""
        self.swept = asyncio.Event()
        """It has looked at least once."""

    async def run(self) -> None:
        while True:
            asked = self._health.ask()
            try:
                await self.sweep()
                self._health.worked(asked)
                self.swept.set()
            except NOT_DONE as error:
                # Others could not tell that they live either: for one lease nobody counts as silent.
                self._trusts_at = monotonic() + self._lease
                await asyncio.sleep(self._health.failed(error))
            # Not in step with the others.
            await asyncio.sleep(random.uniform(0.75, 1.0) * TICK)

    async def sweep(self) -> None:
        dead = await self._bury()
        if await self._lead(anew=dead):
            await self._sweep_for_all()
        await self._despite_damage("Expired jobs cannot be told of", self.tell_expired)

    async def _sweep_for_all(self) -> None:
        if failpoints.armed:
            failpoints.reach("before_rescue")
        silent = monotonic() >= self._trusts_at
        await self._despite_damage("Lost jobs cannot be rescued", lambda: self.rescue(silent=silent))
        await self._despite_damage("Expired jobs cannot be canceled", self._operations.aexpire)

    async def _despite_damage(self, what: str, part: Callable[[], Awaitable[object]]) -> None:
        """One part of a sweep that fails for good must not stop the others."""
        try:
            await part()
            self._failed.discard(what)
        except DAMAGED as error:
            if what not in self._failed:
                self._failed.add(what)
                _log.error("%s: %s", what, tellable(error))

    async def rescue(self, *, silent: bool) -> None:
        """Without ``silent`` only the jobs of workers that are retired already."""
        if rescued := await self._operations.arescue(silent=silent):
            if failpoints.armed:
                failpoints.reach("after_rescue")
            _log.warning("Rescued %d jobs of workers that fell silent", len(rescued))
            await self._tell_rescued(rescued)

    async def tell_expired(self) -> None:
        """Also of those that a claim of this worker met and canceled."""
        expired = self._operations.expired
        if self._hooks.quiet:
            expired.clear()
        while expired:
            page: list[str] = []
            with suppress(IndexError):  # no more, or another worker of this app takes them
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

    async def _tell_rescued(self, rescued: Sequence[Change]) -> None:
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

    async def _bury(self) -> bool:
        """Retire workers that certainly died: on one host that is known at once, long before their lease ends."""
        if not self._store.detects_dead_workers:
            return False
        workers = await self._store.aperform(worker_ops.list_workers)
        others = [worker.id for worker in workers if worker.id != self._worker.identity]
        dead = self._store.absent(others)
        for worker in dead:
            await self._operations.aretire(worker)
        return bool(dead)

    async def _lead(self, *, anew: bool) -> bool:
        """The lead is renewed well before it ends, not at every sweep: each renewal is a write."""
        identity = self._worker.identity
        if not anew and identity == self._led_as and monotonic() < self._renew_at:
            return True
        asked = monotonic()
        leads = await self._operations.alead(NAME, identity, lease=int(LEASE * SECOND))
        self._led_as, self._renew_at = identity, asked + LEASE / 2 if leads else 0.0
        return leads
