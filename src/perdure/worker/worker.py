"""A worker: claims jobs, runs their handlers, records how they end."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

from perdure.internal import failpoints, journal
from perdure.model.job import SECOND, Claimed, Lease
from perdure.model.lifecycle import Change
from perdure.ops.finish import find_recorded
from perdure.ops.topics import ANYTHING, TASKS, worker_topic
from perdure.ops.worker import Beat
from perdure.plan.plan import Plan, arun
from perdure.request.events import EventName, Listener
from perdure.worker.attempt import Attempt
from perdure.worker.background import BackgroundTasks
from perdure.worker.burst import Burst
from perdure.worker.context import JobContext
from perdure.worker.cycle import Cycle, concerns
from perdure.worker.deadlines import Deadlines
from perdure.worker.handler import Handler
from perdure.worker.health import Health, unless_stopped
from perdure.worker.heartbeat import Heartbeat
from perdure.worker.hooks import Hooks
from perdure.worker.identity import Identity
from perdure.worker.last_record import record_last, warn_of_left
from perdure.worker.loop_guard import LoopGuard
from perdure.worker.operations import WorkerOperations
from perdure.worker.options import STOP_GRACE, Exit, WorkerOptions
from perdure.worker.orphan_claims import OrphanClaims
from perdure.worker.outcome import note
from perdure.worker.process.protocol import Load
from perdure.worker.refusals import OUT_OF_SERVICE
from perdure.worker.release_claims import ClaimReleaser
from perdure.worker.reporting import OutcomeReporter, introduce
from perdure.worker.reports import Reports
from perdure.worker.slots import Slots
from perdure.worker.steps import Steps
from perdure.worker.sweeper import Sweeper

FLUSH, LAST = 5.0, 1.0
"""Seconds to record the last outcomes in, and, if those are over, for a last try: the rest is rescued by others."""

_log = logging.getLogger("perdure.worker")


class Worker:
    """Lives in one event loop. ``run`` returns when it was stopped, or when a burst is over."""

    def __init__(
        self,
        operations: WorkerOperations,
        handlers: Mapping[str, Handler],
        options: WorkerOptions,
        *,
        listeners: Mapping[EventName, Sequence[Listener]] | None = None,
        program: Load | None = None,
        sync: Callable[[], Plan[None]] | None = None,
    ) -> None:
        """``program``: where a new process finds the app; without it there are no processes.

        ``sync`` writes the tasks into the database.
        """
        self._operations = operations
        self._store = operations.store
        self._handlers = handlers
        self._options = options
        self._program = program
        self._sync = sync
        self._health = Health()
        self._hooks = Hooks(listeners or {}, handlers)
        self._reporter = OutcomeReporter(operations.store, self._hooks)
        self._stop = asyncio.Event()
        self._changed = asyncio.Event()
        self._status = Exit.DONE
        self._asked = self._hurried = False
        self._flush_until = math.inf
        self._attempts: dict[Lease, Attempt] = {}
        self._orphans = OrphanClaims()
        self._background = BackgroundTasks(self._changed.set, self._loop_ended)
        self._over = asyncio.Event()
        self.ready = asyncio.Event()
        """It is registered and claims."""
        self.error: BaseException | None = None
        """What it died of."""

    # What others ask of it

    def stop(self) -> None:
        """Claim nothing more, let what runs end, and give back what does not end in time."""
        self._asked = True
        self._end()

    def note_stop(self) -> None:
        """It will be told to stop as soon as its loop answers, or ended if that never does. From a signal handler."""
        if self.ready.is_set():
            self._guard.stop_asked()

    def hurry(self) -> None:
        """Stop, and let nothing end by itself any more."""
        self._hurried = True
        self.stop()

    async def unless_stopped(self, waiting: Coroutine[Any, Any, None]) -> None:
        """Wait for something before it runs, but not once it was told to stop."""
        await unless_stopped(self._stop, waiting)

    @property
    def status(self) -> Exit | None:
        """How it ended; None as long as it runs."""
        return self._status if self._over.is_set() else None

    async def wait(self) -> Exit:
        """Until it has ended, by itself or because it was stopped; how it ended."""
        await self._over.wait()
        return self._status

    @property
    def identity(self) -> str:
        return self._identity.id

    def leases(self) -> Sequence[Lease]:
        return list(self._attempts)

    @property
    def busy(self) -> bool:
        return bool(self._attempts or self._releaser)

    @property
    def free(self) -> int:
        """How many more jobs it could run on the loop and in threads."""
        return self._slots.free

    async def run(self) -> Exit:
        try:
            return await self._live()
        except Exception as error:
            self._status, self.error = Exit.CRASHED, error
            raise
        finally:
            self._over.set()

    async def _live(self) -> Exit:
        self._prepare()
        await self._slots.check(self._stop)
        await self._identity.take(self._health, unless=self._stop)
        if not self.identity:  # it was stopped while it waited for its database
            await self._slots.close()
            _log.info("Worker %s was stopped before its database answered", self._identity.name)
            return self._status
        deaf = self._store.listen(self._woken)
        loops = [
            asyncio.create_task(loop)
            for loop in (self._cycle.run(), self._reports.run(), self._sweeper.run())
        ]
        self._guard.start()
        self._heartbeat.start(lambda: self._die("The heartbeat", self._heartbeat.error))
        for task in loops:
            task.add_done_callback(self._loop_ended)
        self.ready.set()
        if self._stop.is_set():
            self.note_stop()
        if self._options.burst:
            self._background.start(self.unless_stopped(self._burst.run()))
        introduce(self._identity.name, self._store.address, options=self._options, slots=self._slots)
        try:
            await self._stop.wait()
            await self._drain()
        except asyncio.CancelledError:
            # With the loop that ends, and so were its handlers. Beside a program anybody may have done that.
            inside = self._options.owns_process and not self._asked
            self._status = Exit.CRASHED if inside else self._status
            for attempt in self._attempts.values():
                attempt.interrupt("collapse" if inside else "interrupt")
            raise
        finally:
            deaf()
            for task in loops:
                task.remove_done_callback(self._loop_ended)
                task.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            await self._leave()
        _log.info(
            "Worker %s has stopped: %s", self._identity.name, self._status.name.lower().replace("_", " ")
        )
        return self._status

    def _prepare(self) -> None:
        options, operations, health = self._options, self._operations, self._health
        self._loop = asyncio.get_running_loop()
        running = self._attempts.values()
        steps = Steps(operations.store, health)
        self._slots = Slots(options, self._handlers, self._program, steps, lambda: self._cycle.wake())
        tasks = sorted([*self._slots.tasks, *self._slots.process_tasks])
        self._identity = Identity(operations, options, tasks, self._sync)
        self._deadlines = Deadlines()
        self._reports = Reports(running, operations, health, self._deadlines)
        self._cycle = Cycle(self, self._slots, operations, health, options)
        lease = options.lease / SECOND
        self._sweeper = Sweeper(self, operations, health, self._hooks, lease=lease)
        self._heartbeat = Heartbeat(self, operations, health, interval=lease / 3)
        self._guard = LoopGuard(running, self._slots, self._heartbeat, self._identity, operations, options)
        self._releaser = ClaimReleaser(operations, health, self._background.start, due=self._cycle.wake)
        self._burst = Burst(
            self, self._cycle, self._sweeper, self._heartbeat, self._releaser, operations, health
        )

    # Its identity

    def renew_identity(self) -> None:
        self._identity.renew()

    def on_beat(self, identity: str, before: Sequence[Lease], beat: Beat) -> None:
        """Compare what the database believes with what runs here."""
        if not beat.live:
            self._cycle.wake()  # under the old identity it was given nothing
        self._identity.configs = beat.configs
        believed = set(beat.running) if beat.live and identity == self.identity else set[Lease]()
        for lease in before:
            attempt = self._attempts.get(lease)
            if attempt is not None and not attempt.ended and lease not in believed:
                attempt.stop("lost")
        for lease in beat.cancel_requested:
            if attempt := self._attempts.get(lease):
                attempt.stop("cancel")
        unknown = believed.difference(before, self._attempts)
        if lost := self._orphans.lost(unknown, begun=self._cycle.begun, over=self._cycle.over):
            _log.warning("Giving back %d jobs whose claim was never answered", len(lost))
            self._releaser.give_back(lost)

    # Jobs

    def begin(self, jobs: Sequence[Claimed], identity: str) -> None:
        self._changed.set()
        if jobs and (identity != self.identity or not self._cycle.claiming):
            self._releaser.give_back([job.lease for job in jobs])
            return
        for job in jobs:
            self._start(job)
        if self._options.burst:
            self._burst.look()

    def _start(self, job: Claimed) -> None:
        handler = self._handlers[job.task]
        operations, spoken = self._operations, self._reports.spoken
        context = JobContext(job, self._handlers, worker=self.identity, operations=operations, spoken=spoken)
        context.config_text = self._identity.config_of(job.task, handler.name)
        attempt = Attempt(job, handler, context, self._slots.of(job, handler), started=monotonic())
        self._attempts[attempt.lease] = attempt
        self._slots.take(attempt)
        if journal.enabled:
            journal.note("started", [job.id], token=job.token, worker=self.identity)
        self._reporter.began(attempt)
        attempt.start(self._deadlines.begin, self._ended)

    def _ended(self, attempt: Attempt) -> None:
        self._changed.set()
        self._deadlines.end(attempt)
        if journal.enabled:
            note("ended", attempt.lease, attempt.outcome, why=attempt.why)
        if attempt.outcome is None:
            self._forget(attempt)
            self._reporter.lost(attempt)
        else:
            if failpoints.armed:
                failpoints.reach("after_handler_before_flush")
            self._reports.behind(attempt, self._cycle.record)
        if attempt.why is not None and self._slots.all_lost:
            _log.error("Every thread is taken by a handler that does not end: stopping")
            self._status = Exit.SLOTS_LOST
            self.stop()

    def recorded(self, attempt: Attempt, change: Change | None, *, accepted: bool) -> None:
        if not accepted and attempt.context.has_succeeded:
            self._background.start(self._confirm(attempt))
            return
        self._forget(attempt)
        if journal.enabled:
            note("accepted" if accepted else "refused", attempt.lease, attempt.outcome)
        if accepted:
            self._reporter.ended(attempt, change)
        else:
            self._reporter.lost(attempt)

    async def _confirm(self, attempt: Attempt) -> None:
        """The handler recorded its success by itself: then whatever came after has nothing to say."""
        success = attempt.context.success
        assert success is not None
        recorded = await self._health.until_answered(lambda: self._store.aperform(find_recorded, [success]))
        if recorded:
            attempt.overrule(success)
        else:
            attempt.context.success = None
        self.recorded(attempt, None, accepted=bool(recorded))

    def _forget(self, attempt: Attempt) -> None:
        del self._attempts[attempt.lease]
        self._slots.leave(attempt)
        self._changed.set()
        if not self._cycle.is_under_way:
            self._cycle.wake()  # for its slot, which no turn asks for

    # The end

    async def _drain(self) -> None:
        self._cycle.claiming = False
        if failpoints.armed:
            failpoints.reach("while_draining")
        _log.info("Stopping: %d jobs still run", len(self._attempts))
        left, only_retries = self._attempts.values(), self._cycle.only_retries
        await self._until(lambda: self._idle or self._hurried or only_retries(left), self._options.drain)
        running = [attempt for attempt in self._attempts.values() if not attempt.ended]
        if running:
            self._status = self._status or Exit.GAVE_BACK
            for attempt in running:
                attempt.stop("interrupt")
            await self._until(lambda: all(attempt.ended for attempt in running), STOP_GRACE)
            for attempt in running:
                attempt.give_up()
        self._flush_until = monotonic() + FLUSH
        await self._until(lambda: self._idle, FLUSH)

    async def _until(self, condition: Callable[[], bool], seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not condition():
                    self._changed.clear()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(0.25):
                            await self._changed.wait()

    @property
    def _idle(self) -> bool:
        """All is recorded. A claim that is under way may still bring jobs, which are then given back."""
        if self._cycle.dead:
            return all(attempt.ended for attempt in self._attempts.values())
        return not (self._attempts or self._background or self._cycle.busy)

    async def _leave(self) -> None:
        """Whatever kept the loops from it: nothing is left running in this worker's name."""
        try:
            async with asyncio.timeout(max(LAST, min(FLUSH, self._flush_until - monotonic()))):
                left = await arun(self._store, record_last(self._operations, self._attempts.values()))
                self._status = self._status or (Exit.GAVE_BACK if warn_of_left(left) else Exit.DONE)
                await self._sweeper.tell_expired()
                await self._heartbeat.stop()
                if failpoints.armed:
                    failpoints.reach("before_retirement")
                await self._operations.aretire(self.identity)
        except (*OUT_OF_SERVICE, TimeoutError):
            _log.warning("The database did not answer in time: other workers will find what is left")
            self._status = self._status or Exit.GAVE_BACK
        except Exception as error:
            _log.exception(
                "The end of this worker could not be recorded: other workers will find what is left"
            )
            self._status, self.error = Exit.CRASHED, self.error or error
        # Or it would keep alive what nobody runs.
        self._heartbeat.end()
        self._identity.give_up()
        await self._slots.close()
        await self._reporter.close()
        await self._hooks.close()
        self._guard.end()

    def _die(self, what: str, error: BaseException | None) -> None:
        _log.error("%s of this worker ended; it stops", what)
        self._status, self.error = Exit.CRASHED, self.error or error
        self._end()

    def _end(self) -> None:
        self.note_stop()
        self._stop.set()

    def _loop_ended(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        _log.error("A loop of this worker died", exc_info=error)
        self._die("A loop", error)

    # Small things

    def _woken(self, topics: frozenset[str]) -> None:
        """Something was committed somewhere. Called from any thread."""
        with suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(self._wake, topics)

    def _wake(self, topics: frozenset[str]) -> None:
        queues = self._options.queues
        anything = ANYTHING in topics
        if anything or any(concerns(topic, queues) for topic in topics):
            self._cycle.wake()
        if TASKS in topics or (self._attempts and (anything or worker_topic(self.identity) in topics)):
            self._heartbeat.check_now()
