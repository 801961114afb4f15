"""A burst: the worker stops once no job is due and, according to the database, it runs no job."""

from __future__ import annotations

import asyncio
from typing import Protocol

from perdure.worker.executor import Executor
from perdure.worker.health import Health
from perdure.worker.heartbeat import Heartbeat
from perdure.worker.operations import WorkerOperations
from perdure.worker.sweeper import Sweeper


class Bursting(Protocol):
    """The part of the worker that a burst needs."""

    @property
    def identity(self) -> str: ...

    def stop(self) -> None: ...


class Burst:
    """Stops the worker once it has run all due jobs, including the jobs that a dead worker left."""

    def __init__(
        self,
        worker: Bursting,
        executor: Executor,
        sweeper: Sweeper,
        heartbeat: Heartbeat,
        operations: WorkerOperations,
        health: Health,
    ) -> None:
        self._worker = worker
        self._executor = executor
        self._sweeper = sweeper
        self._heartbeat = heartbeat
        self._operations = operations
        self._health = health
        self._drained = asyncio.Event()
        self._swept_as = ""

    async def run(self) -> None:
        """Wait until the burst is over, then stop the worker."""
        await self._sweeper.swept.wait()
        self._executor.cycle.wake()
        while not await self._over():
            pass
        self._worker.stop()

    def look(self) -> None:
        """Check whether claims still find jobs. Called after each cycle."""
        if self._executor.busy or not self._sweeper.swept.is_set():
            return
        if self._executor.cycle.drained:
            self._drained.set()
        else:
            self._executor.cycle.look_again()

    async def _over(self) -> bool:
        """Whether nothing is left to do.

        This asks the database. The worker may have been retired, so that its claims find no jobs. Or it may own jobs
        whose claim was not answered.
        """
        await self._drained.wait()
        self._drained.clear()
        identity = self._worker.identity
        await self._sweep_once(identity)
        beat = await self._health.until_answered(lambda: self._operations.apeek(identity))
        if self._executor.busy or not self._executor.cycle.drained:
            return False
        if not beat.live or identity != self._worker.identity:
            self._heartbeat.check_now()  # the heartbeat registers a new identity
            return False
        if beat.running:
            self._executor.releaser.give_back(beat.running)
        return not beat.running

    async def _sweep_once(self, identity: str) -> None:
        """Rescue the jobs that this worker left under an old identity, and bring back due jobs that were set aside.

        The elected worker, which usually does this, may be dead.
        """
        if identity == self._swept_as:
            return
        await self._health.until_answered(self._sweeper.rescue)
        await self._health.until_answered(self._sweeper.bring_back)
        self._swept_as = identity
        self._operations.limits_may_have_changed()  # a claim that does not know the current limits gets no jobs
        # Wake it even if the sweep found nothing: an earlier try, whose answer was lost, may have found jobs.
        self._executor.cycle.wake()
