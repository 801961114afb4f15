"""Runs a real worker until nothing is due, and records what it did."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.errors import InternalError, JobFailed, WaitTimeout
from perdure.model.job import Claimed, Lease
from perdure.model.lifecycle import Failed, Outcome
from perdure.ops.finish import Finished
from perdure.plan.plan import Plan, async_method
from perdure.request.context import Context
from perdure.request.middleware import Middleware
from perdure.request.signals import Stopped
from perdure.request.times import LONGEST
from perdure.store.store import Store
from perdure.worker.claimer import Batch
from perdure.worker.handler import Handler
from perdure.worker.operations import Queues, WorkerOperations
from perdure.worker.options import Exit, WorkerOptions
from perdure.worker.worker import Worker

if TYPE_CHECKING:
    from perdure.app import App

T = TypeVar("T")

POLL = 0.01
"""Seconds between two polls. Only this test uses the database, so frequent polls do no harm."""


def in_a_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a new event loop. The thread must have no event loop, and has none afterwards."""
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        return runner.run(work)


class Run:
    """Runs workers one after the other, for at most ``timeout`` seconds in all."""

    def __init__(self, app: App, store: Store, *, timeout: float, concurrency: int) -> None:
        self._app = app
        self._timeout = timeout
        self._until = monotonic() + timeout
        self._witness = Witness()
        self._operations = WitnessedOperations(store, self._witness)
        self._options = WorkerOptions(
            burst=True,
            concurrency=concurrency,
            drain=0.0,
            poll=POLL,
            # The worker must never count as silent, however far a handler moves the clock.
            lease=LONGEST,
            name="testing",
        )

    @property
    def claimed(self) -> dict[Lease, Claimed]:
        """Every claim, in order."""
        return self._witness.claimed

    @property
    def jobs(self) -> list[str]:
        """The ids of the jobs in ``claimed``, each once."""
        return list(dict.fromkeys(lease.job for lease in self.claimed))

    @property
    def error(self) -> BaseException | None:
        """The error of the first attempt that failed."""
        return next(iter(self._witness.failed.values()), None)

    async def until_idle(self) -> None:
        await self._sweep()
        await self._app.asave_tasks()
        while await self._anything_due():
            begun = len(self.claimed)
            await self._burst()
            if len(self.claimed) == begun:
                # The due jobs cannot run: their queue is paused, or their task belongs to another program.
                return
            await self._sweep()

    async def _sweep(self) -> None:
        await self._operations.arescue()
        await self._operations.aexpire()

    async def _anything_due(self) -> bool:
        counts = await self._app.acount_jobs()
        return any(views.get("ready") for views in counts.values())

    async def _burst(self) -> None:
        worker = Worker(self._operations, self._handlers(), self._options, listeners=self._app.listeners)
        running = asyncio.create_task(worker.run(), name="perdure testing")
        try:
            await asyncio.wait((running,), timeout=max(0.0, self._until - monotonic()))
            late = not running.done()
            tasks = sorted({job.task for job in self._witness.running.values()})
        finally:
            worker.stop()
            status = await running
        if late:
            raise WaitTimeout(
                f"Jobs are left after {self._timeout:g} s; running tasks: {', '.join(tasks) or 'none'}."
            )
        if status == Exit.CRASHED:
            raise InternalError("The worker of this test died; the log of perdure.worker says why.")

    def _handlers(self) -> dict[str, Handler]:
        return {name: self._witnessed(task.handler) for name, task in self._app.tasks.items()}

    def _witnessed(self, handler: Handler) -> Handler:
        middleware = (self._witness, *handler.middleware)
        if handler.run_in != "process":
            return replace(handler, middleware=middleware)
        # A child process would use the host's clock, and would lack the objects that the test has patched.
        return replace(handler, middleware=middleware, run_in="async" if handler.is_async else "thread")


class Witness(Middleware):
    """Middleware that records claims, the errors that handlers raise, and their outcomes."""

    def __init__(self) -> None:
        self.claimed: dict[Lease, Claimed] = {}
        self.running: dict[Lease, Claimed] = {}
        self.failed: dict[Lease, BaseException] = {}
        self._raised: dict[str, BaseException] = {}

    @contextmanager
    def run(self, task: str, context: Context) -> Iterator[None]:
        __tracebackhide__ = True
        try:
            yield
        except (asyncio.CancelledError, Stopped):
            # The handler did not fail: it was stopped.
            raise
        except BaseException as error:
            self._raised[context.job_id or ""] = error
            raise

    def begun(self, jobs: Sequence[Claimed]) -> None:
        for job in jobs:
            self.claimed[job.lease] = self.running[job.lease] = job

    def ended(self, outcomes: Sequence[Outcome], finished: Finished) -> None:
        accepted = set(finished.accepted)
        instead = {outcome.lease: outcome for outcome in finished.instead}
        for outcome in (instead.get(outcome.lease, outcome) for outcome in outcomes):
            self.running.pop(outcome.lease, None)
            error = self._raised.pop(outcome.lease.job, None)
            if isinstance(outcome, Failed) and outcome.lease in accepted:
                self.failed.setdefault(outcome.lease, error or _as_error(outcome))


class WitnessedOperations(WorkerOperations):
    """The worker's operations, which record every claim and outcome."""

    def __init__(self, store: Store, witness: Witness) -> None:
        super().__init__(store)
        self._witness = witness

    def _cycle(
        self,
        worker: str,
        outcomes: Sequence[Outcome],
        *,
        tasks: Sequence[str],
        n: int,
        queues: Queues = None,
        polls: bool = False,
    ) -> Plan[tuple[Finished, Batch]]:
        finished, jobs = yield from super()._cycle(
            worker, outcomes, tasks=tasks, n=n, queues=queues, polls=polls
        )
        self._witness.ended(outcomes, finished)
        self._witness.begun(jobs)
        return finished, jobs

    def _finish(self, outcomes: Sequence[Outcome], *, last: bool = False) -> Plan[Finished]:
        finished = yield from super()._finish(outcomes, last=last)
        self._witness.ended(outcomes, finished)
        return finished

    acycle = async_method(_cycle)
    afinish = async_method(_finish)


def _as_error(outcome: Failed) -> BaseException:
    """An error for an attempt without an exception: it timed out, or the handler ran in another process."""
    error = JobFailed(f"An attempt of job {outcome.lease.job} failed: {outcome.code or outcome.kind}.")
    error.add_note(outcome.trace or outcome.message)
    return error
