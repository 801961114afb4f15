"""A worker: registers, claims and runs jobs until it is stopped, then drains and retires."""

from __future__ import annotations

import asyncio
import logging
import math
import traceback
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

from perdure.internal import failpoints
from perdure.model.job import SECOND, Lease
from perdure.ops.topics import ANYTHING, LIMITS, QUEUES, TASKS, worker_topic
from perdure.ops.worker import Beat
from perdure.plan.plan import Plan, arun
from perdure.request.events import EventName, Listener
from perdure.worker.burst import Burst
from perdure.worker.cycle import concerns
from perdure.worker.database_errors import OUT_OF_SERVICE
from perdure.worker.executor import Executor
from perdure.worker.handler import Handler
from perdure.worker.health import Health, unless_stopped
from perdure.worker.heartbeat import Heartbeat
from perdure.worker.hooks import Hooks
from perdure.worker.identity import Identity
from perdure.worker.last_record import record_last, warn_of_unrecorded
from perdure.worker.lease_watch import LeaseWatch
from perdure.worker.loop_guard import LoopGuard
from perdure.worker.loop_watch import Verdict
from perdure.worker.operations import WorkerOperations
from perdure.worker.options import STOP_GRACE, Exit, WorkerOptions
from perdure.worker.process.protocol import Load
from perdure.worker.reporting import log_start
from perdure.worker.slots import Slots
from perdure.worker.steps import Steps
from perdure.worker.sweeper import Sweeper

FLUSH, LAST = 5.0, 1.0
"""``FLUSH``: seconds to record the last outcomes.

``LAST``: the least seconds for the last try, even if ``FLUSH`` is used up. Other workers rescue the jobs whose outcomes
could not be recorded.
"""

_log = logging.getLogger("perdure.worker")


class Worker:
    """A worker in one event loop. ``run`` returns when the worker was stopped, or when a burst is over."""

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
        """``program``: where a child process finds the app. Without ``program``, the worker starts no child processes.

        ``sync`` writes the tasks into the database.
        """
        self._operations = operations
        self._handlers = handlers
        self._options = options
        self._program = program
        self._sync = sync
        self._health = Health()
        self._hooks = Hooks(listeners or {}, handlers)
        self._stop = asyncio.Event()
        self._stop_requested = self._at_once = False
        self._flush_until = math.inf
        self._status = Exit.DONE
        self._over = asyncio.Event()
        self.ready = asyncio.Event()
        """Set once the worker is registered and claims jobs."""
        self.error: BaseException | None = None
        """The error that ended the worker."""

    # Called by the program that runs the worker

    def stop(self) -> None:
        """Stop claiming, let running jobs end, and give back the jobs that do not end in time."""
        self._stop_requested = True
        self._end()

    def note_stop(self) -> None:
        """Count the time to drain from now, even if the loop is blocked. Called from a signal handler."""
        if self.ready.is_set():
            self._guard.stop_asked()

    def stop_at_once(self) -> None:
        """Stop without the time to drain: ask handlers to stop now."""
        self._at_once = True
        self.stop()

    async def unless_stopped(self, waiting: Coroutine[Any, Any, None]) -> None:
        """Wait until this coroutine ends or the worker is stopped."""
        await unless_stopped(self._stop, waiting)

    @property
    def status(self) -> Exit | None:
        """How the worker ended; None while it runs."""
        return self._status if self._over.is_set() else None

    async def wait(self) -> Exit:
        """Wait until the worker has ended, and return how it ended."""
        await self._over.wait()
        return self._status

    @property
    def free(self) -> int:
        """How many more jobs the worker could run on the loop and in threads."""
        return self._slots.free

    # From registration to retirement

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
        if not self.identity:  # the worker was stopped while it waited for its database
            await self._slots.close()
            _log.info("Worker %s was stopped before its database answered", self._identity.name)
            return self._status
        await self.unless_stopped(self._executor.queue_settings.read())
        stop_listening = self._listen()
        loops = self._start()
        try:
            await self._stop.wait()
            await self._drain()
        except asyncio.CancelledError:
            # The program may cancel its worker. But if the worker owns the process and nobody asked it to stop, then
            # a handler cancelled it.
            from_inside = self._options.owns_process and not self._stop_requested
            self._status = Exit.CRASHED if from_inside else self._status
            self._executor.interrupt("loop_stopped" if from_inside else "interrupt")
            raise
        finally:
            stop_listening()
            for task in loops:
                task.remove_done_callback(self.task_failed)
                task.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            await self._leave()
        status = self._status.name.lower().replace("_", " ")
        _log.info("Worker %s has stopped: %s", self._identity.name, status)
        return self._status

    def _prepare(self) -> None:
        """Create the parts of the worker, which need the running loop."""
        options, operations, health = self._options, self._operations, self._health
        lease = options.lease / SECOND
        steps = Steps(operations.store, health)
        self._slots = slots = Slots(
            options, self._handlers, self._program, steps, lambda: self._executor.cycle.wake()
        )
        self._identity = Identity(operations, options, slots.all_tasks, self._sync)
        self._executor = executor = Executor(
            self,
            operations,
            self._handlers,
            options,
            identity=self._identity,
            slots=slots,
            health=health,
            hooks=self._hooks,
        )
        self._sweeper = Sweeper(self, operations, health, self._hooks, lease=lease)
        self._heartbeat = Heartbeat(self, operations, health, interval=lease / 3)
        self._lease_watch = LeaseWatch(self._heartbeat, executor.attempts.values(), lease=lease)
        self._guard = LoopGuard(
            executor.attempts.values(), slots, self._heartbeat, self._identity, operations, options
        )
        self._burst = Burst(self, executor, self._sweeper, self._heartbeat, operations, health)

    def _start(self) -> list[asyncio.Task[None]]:
        """Start the loops and threads of the worker."""
        executor = self._executor
        running = (
            executor.cycle.run(),
            executor.reports.run(),
            executor.queue_settings.run(),
            self._sweeper.run(),
            self._lease_watch.run(),
        )
        loops = [asyncio.create_task(loop) for loop in running]
        self._guard.start()
        self._heartbeat.start(
            lambda: self._die("The heartbeat", self._heartbeat.error),
            registered_at=self._identity.registered_at,
        )
        for task in loops:
            task.add_done_callback(self.task_failed)
        self.ready.set()
        if self._stop.is_set():
            self.note_stop()
        if self._options.burst:
            executor.background.start(self.unless_stopped(self._burst.run()))
        address = self._operations.store.address
        log_start(self._identity.name, address, options=self._options, slots=self._slots)
        return loops

    def _listen(self) -> Callable[[], None]:
        """Wake the worker after commits. Return a function that stops listening."""
        loop = asyncio.get_running_loop()

        def committed(topics: frozenset[str]) -> None:
            """Called from any thread."""
            with suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(self._wake, topics)

        return self._operations.store.listen(committed)

    def _wake(self, topics: frozenset[str]) -> None:
        queues = self._options.queues
        anything = ANYTHING in topics
        if anything or LIMITS in topics:
            self._operations.limits_may_have_changed()
        if anything or LIMITS in topics or any(concerns(topic, queues) for topic in topics):
            self._executor.cycle.wake()
        running = bool(self._executor.attempts)
        if QUEUES in topics:
            self._executor.queue_settings.read_now()
        if TASKS in topics or (running and (anything or worker_topic(self.identity) in topics)):
            self._heartbeat.check_now()

    # Called by the parts of the worker

    @property
    def identity(self) -> str:
        return self._identity.id

    def renew_identity(self) -> None:
        self._identity.renew()

    def leases(self) -> Sequence[Lease]:
        return list(self._executor.attempts)

    def on_beat(self, identity: str, before: Sequence[Lease], beat: Beat) -> None:
        """Compare the jobs that the database believes this worker runs with the worker's attempts."""
        if not beat.live:
            self._executor.cycle.wake()  # claim again: claims under the retired identity found nothing
        self._identity.configs = beat.configs
        believed = set(beat.running) if beat.live and identity == self.identity else set[Lease]()
        self._executor.compare(before, believed, beat)

    def after_claim(self) -> None:
        if self._options.burst:
            self._burst.look()

    def slots_lost(self) -> None:
        _log.error("Every thread is taken by a handler that does not end: stopping")
        self._status = Exit.SLOTS_LOST
        self.stop()

    def task_failed(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        _log.error("A loop of this worker died", exc_info=error)
        self._die("A loop", error)

    # The end of the worker

    def _die(self, what: str, error: BaseException | None) -> None:
        _log.error("%s of this worker ended; it stops", what)
        self._status, self.error = Exit.CRASHED, self.error or error
        self._end()

    def _end(self) -> None:
        self.note_stop()
        self._stop.set()

    async def _drain(self) -> None:
        executor = self._executor
        attempts, cycle = executor.attempts.values(), executor.cycle
        cycle.claiming = False
        if failpoints.armed:
            failpoints.reach("while_draining")
        _log.info("Stopping: %d jobs still run", len(attempts))
        await self._until(
            lambda: executor.idle or self._at_once or cycle.only_retries(attempts), self._options.drain
        )
        running = [attempt for attempt in attempts if not attempt.ended]
        if running:
            self._status = self._status or Exit.GAVE_BACK
            for attempt in running:
                attempt.stop("interrupt")
            await self._until(lambda: all(attempt.ended for attempt in running), STOP_GRACE)
            for attempt in running:
                attempt.give_up()
        self._flush_until = monotonic() + FLUSH
        await self._until(lambda: executor.idle, FLUSH)

    async def _until(self, condition: Callable[[], bool], seconds: float) -> None:
        changed = self._executor.changed
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not condition():
                    changed.clear()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(0.25):
                            await changed.wait()

    async def _leave(self) -> None:
        """Record the outcomes that the loops did not record, and retire.

        No job runs under this worker's identity afterwards.
        """
        attempts = self._executor.attempts.values()
        try:
            async with asyncio.timeout(max(LAST, min(FLUSH, self._flush_until - monotonic()))):
                left = await arun(self._operations.store, record_last(self._operations, attempts))
                self._status = self._status or (Exit.GAVE_BACK if warn_of_unrecorded(left) else Exit.DONE)
                await self._sweeper.report_expired()
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
        self._heartbeat.end()  # even after an error: it must not renew leases of jobs that nobody runs
        self._identity.release_lock()
        await self._slots.close()
        await self._executor.reporter.close()
        await self._hooks.close()
        self._guard.end()

    def end_without_loop(self, error: BaseException) -> None:
        """End a worker whose event loop cannot run any more, for example because a handler closed its selector.

        If the worker owns its process, record all attempts from this thread and end the process. Otherwise only end the
        heartbeat.
        """
        if not self.ready.is_set():
            return
        for attempt in self._executor.attempts.values():
            # This does not call stop(): cancelling a handler needs the loop.
            if not attempt.ended and attempt.stop_reason is None:
                attempt.stop_reason = "loop_stopped"
        message = f"The event loop cannot run any more ({type(error).__name__})."
        stack = "".join(traceback.format_tb(error.__traceback__))
        self._guard.give_up_loop(Verdict(Exit.CRASHED, message), stack)
        self._heartbeat.end()  # so that other workers rescue the jobs that ran, if the process continues
