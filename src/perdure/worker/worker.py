"""A worker: takes jobs from the ledger, runs their handlers, records how they end."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from time import monotonic, time
from typing import Any

from perdure import diary, failpoints
from perdure.errors import Unavailable
from perdure.events import EventName, Listener
from perdure.ids import new_id
from perdure.model.job import SECOND, Claimed, Lease
from perdure.model.lifecycle import Change, Failed, Outcome, Released
from perdure.ops.finish import find_recorded
from perdure.ops.topics import ANYTHING, worker_topic
from perdure.ops.worker import Beat
from perdure.worker.attempt import STOPPED, Attempt
from perdure.worker.context import JobContext
from perdure.worker.cycle import Cycle, concerns
from perdure.worker.deadlines import Deadlines
from perdure.worker.ending import note
from perdure.worker.handler import Handler
from perdure.worker.health import Health
from perdure.worker.hooks import Hooks
from perdure.worker.ledger import Ledger
from perdure.worker.options import Exit, WorkerOptions
from perdure.worker.places import Places
from perdure.worker.pulse import Pulse
from perdure.worker.reports import Reports
from perdure.worker.sweeper import Sweeper
from perdure.worker.telling import Teller
from perdure.worker.wire import Load

STOP_GRACE = 5.0
"""Seconds that handlers get to end once they are told that the worker stops."""
FLUSH = 10.0
"""Seconds to record the last outcomes in; what is not recorded then is rescued by others."""

_log = logging.getLogger("perdure.worker")


class Worker:
    """Lives in one event loop. ``run`` returns when it was stopped, or when a burst is over."""

    def __init__(
        self,
        ledger: Ledger,
        handlers: Mapping[str, Handler],
        options: WorkerOptions,
        *,
        listeners: Mapping[EventName, Sequence[Listener]] | None = None,
        program: Load | None = None,
    ) -> None:
        """``program``: where a new process finds the app; without it there are no processes."""
        self._ledger = ledger
        self._store = ledger.store
        self._handlers = handlers
        self._options = options
        self._program = program
        self._health = Health()
        self._hooks = Hooks(listeners or {}, handlers)
        self._teller = Teller(ledger.store, self._hooks)
        self._stop = asyncio.Event()
        self._changed = asyncio.Event()
        self._status = Exit.DONE
        self._hurried = False
        self._attempts: dict[Lease, Attempt] = {}
        self._unknown: dict[Lease, int] = {}
        self._errands: set[asyncio.Task[object]] = set()
        self._release: Callable[[], None] = lambda: None
        self.identity = ""
        self.ready = asyncio.Event()
        """It is registered and claims."""

    # What others ask of it

    def stop(self) -> None:
        """Claim nothing more, let what runs end, and give back what does not end in time."""
        self._stop.set()

    def hurry(self) -> None:
        """Stop, and let nothing end by itself any more."""
        self._hurried = True
        self.stop()

    def leases(self) -> Sequence[Lease]:
        return list(self._attempts)

    @property
    def free(self) -> int:
        """How many more jobs it could run on the loop and in threads."""
        return self._places.free

    async def run(self) -> Exit:
        self._prepare()
        await self._places.check()
        await self._register_until_done()
        if not self.identity:  # it was stopped while it waited for its database
            await self._places.close()
            return self._status
        deaf = self._store.listen(self._woken)
        loops = [
            asyncio.create_task(loop)
            for loop in (self._cycle.run(), self._reports.run(), self._sweeper.run())
        ]
        self._pulse.start(lambda: self._die("The heartbeat"))
        for task in loops:
            task.add_done_callback(self._loop_ended)
        self.ready.set()
        _log.info("Worker %s runs %d tasks", self._name, len(self._handlers))
        try:
            await self._stop.wait()
            await self._drain()
        except asyncio.CancelledError:
            # With the loop that ends: so were its handlers, and none of them did it to itself.
            for attempt in self._attempts.values():
                attempt.interrupt()
            raise
        finally:
            deaf()
            for task in loops:
                task.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            await self._leave()
        _log.info("Worker %s has stopped: %s", self._name, self._status.name.lower().replace("_", " "))
        return self._status

    def _prepare(self) -> None:
        options, ledger = self._options, self._ledger
        self._name = options.name or f"{socket.gethostname()}:{os.getpid()}"
        self._loop = asyncio.get_running_loop()
        self._places = Places(options, self._handlers, self._program, lambda: self._cycle.wake())
        self._tasks = sorted([*self._places.tasks, *self._places.process_tasks])
        self._deadlines = Deadlines()
        self._reports = Reports(self._attempts.values(), ledger, self._health, self._deadlines)
        self._cycle = Cycle(
            self, self._places, ledger, self._health, queues=options.queues, poll=options.poll
        )
        lease = options.lease / SECOND
        self._sweeper = Sweeper(self, ledger, self._health, self._hooks, lease=lease)
        self._pulse = Pulse(self, ledger, self._health, interval=lease / 3)

    # Its identity

    async def _register_until_done(self) -> None:
        """A worker that starts before its database waits for it."""
        while not self._stop.is_set():
            try:
                await asyncio.to_thread(self.renew_identity)
                return
            except Unavailable as error:
                await asyncio.sleep(self._health.failed(error))

    def renew_identity(self) -> None:
        identity, options = new_id(), self._options
        if failpoints.armed:
            failpoints.reach("before_register")
        self._ledger.register(
            identity,
            name=self._name,
            lease=options.lease,
            tasks=self._tasks,
            queues=options.queues,
            slots=options.concurrency,
        )
        if failpoints.armed:
            failpoints.reach("after_register")
        if self.identity:
            _log.warning("This worker was believed dead; what it ran is lost to it. It goes on as a new one")
        release, self._release = self._release, self._store.hold(identity)
        self.identity = identity
        release()

    def heard(self, identity: str, before: Sequence[Lease], beat: Beat) -> None:
        """Compare what the database believes with what runs here."""
        believed = set(beat.running) if beat.live and identity == self.identity else set[Lease]()
        for lease in before:
            attempt = self._attempts.get(lease)
            if attempt is not None and not attempt.ended and lease not in believed:
                attempt.stop("lost")
        for lease in beat.cancel_requested:
            if attempt := self._attempts.get(lease):
                attempt.stop("cancel")
        self._look_at_unknown(believed.difference(before, self._attempts))

    def _look_at_unknown(self, unknown: set[Lease]) -> None:
        """Claims that the database knows of and we do not: their commit was never answered.

        Or the answer is still on its way: they are given back only once the turn that was under way when
        they were first seen is over.
        """
        turn, under_way = self._cycle.turn
        lost = {
            lease
            for lease in unknown
            if lease in self._unknown and (self._unknown[lease] < turn or not under_way)
        }
        self._unknown = {lease: self._unknown.get(lease, turn) for lease in unknown - lost}
        if lost:
            _log.warning("Giving back %d jobs whose claim was never answered", len(lost))
            self._give_back(lost)

    # Jobs

    def begin(self, jobs: Sequence[Claimed], identity: str) -> None:
        self._changed.set()
        if jobs and (identity != self.identity or not self._cycle.claiming):
            self._give_back([job.lease for job in jobs])
            return
        for job in jobs:
            self._start(job)
        if self._options.burst and not self._attempts:
            if self._cycle.drained:
                self.stop()
            else:
                self._cycle.wake()  # one more look: the last claim found something

    def _start(self, job: Claimed) -> None:
        handler = self._handlers[job.task]
        context = JobContext(
            job,
            worker=self.identity,
            ledger=self._ledger,
            results=handler.results,
            middleware=handler.middleware,
            spoken=self._reports.spoken,
        )
        attempt = Attempt(job, handler, context, self._places.of(job, handler), started=monotonic())
        if attempt.deadline is not None:
            context.deadline_at = time() + attempt.deadline - attempt.started
        self._attempts[attempt.lease] = attempt
        self._places.take(attempt)
        self._deadlines.begin(attempt)
        if diary.kept:
            diary.note("started", [job.id], token=job.token, worker=self.identity)
        self._teller.began(attempt)
        attempt.start(self._ended)

    def _ended(self, attempt: Attempt) -> None:
        self._deadlines.end(attempt)
        if diary.kept:
            note("ended", attempt.lease, attempt.outcome, why=attempt.why)
        if attempt.outcome is None:
            self._forget(attempt)
            self._teller.lost(attempt)
        else:
            if failpoints.armed:
                failpoints.reach("after_handler_before_flush")
            self._reports.behind(attempt, lambda: self._cycle.record(attempt))
        if self._places.all_lost:
            _log.error("Every thread is taken by a handler that does not end: stopping")
            self._status = Exit.SLOTS_LOST
            self.stop()

    def recorded(self, attempt: Attempt, change: Change | None, *, accepted: bool) -> None:
        if not accepted and attempt.context.has_succeeded:
            self._errand(self._confirm(attempt))
            return
        self._forget(attempt)
        if diary.kept:
            note("accepted" if accepted else "refused", attempt.lease, attempt.outcome)
        if accepted:
            self._teller.ended(attempt, change)
        else:
            self._teller.lost(attempt)

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
        self._places.leave(attempt)
        self._changed.set()

    def _give_back(self, leases: Sequence[Lease] | set[Lease]) -> None:
        outcomes = [Released(lease) for lease in sorted(leases)]
        if diary.kept:
            for lease in leases:
                diary.note("released", [lease.job], token=lease.token)
        self._errand(self._health.until_answered(lambda: self._ledger.afinish(outcomes)))

    # The end

    async def _drain(self) -> None:
        self._cycle.claiming = False
        if failpoints.armed:
            failpoints.reach("while_draining")
        _log.info("Stopping: %d jobs still run", len(self._attempts))
        await self._until_idle(self._options.drain, patient=True)
        running = [attempt for attempt in self._attempts.values() if not attempt.ended]
        if running:
            self._status = self._status or Exit.GAVE_BACK
            for attempt in running:
                attempt.stop("interrupt")
            await self._until_idle(STOP_GRACE)
            for attempt in running:
                attempt.give_up()
        await self._until_idle(FLUSH)

    async def _until_idle(self, seconds: float, *, patient: bool = False) -> None:
        """Until nothing runs and everything is recorded, but not longer than this."""
        try:
            async with asyncio.timeout(seconds):
                while not (self._idle or (patient and self._hurried)):
                    self._changed.clear()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(0.25):
                            await self._changed.wait()
        except TimeoutError:
            pass

    @property
    def _idle(self) -> bool:
        """A claim that is under way may still bring jobs, which are then given back."""
        if self._cycle.dead:
            return all(attempt.ended for attempt in self._attempts.values())
        return not (self._attempts or self._errands or self._cycle.busy)

    async def _leave(self) -> None:
        """Whatever kept the loops from it: nothing is left running in this worker's name."""
        rest: list[Outcome] = [
            attempt.final() if attempt.outcome else Failed(attempt.lease, "interrupted", message=STOPPED)
            for attempt in self._attempts.values()
        ]
        try:
            async with asyncio.timeout(FLUSH):
                if rest:
                    await self._ledger.afinish(rest)
                await self._pulse.stop()
                if failpoints.armed:
                    failpoints.reach("before_retirement")
                await self._ledger.aretire(self.identity)
        except (Unavailable, TimeoutError):
            _log.warning("The database did not answer in time: other workers will find what is left")
            self._status = self._status or Exit.GAVE_BACK
        except Exception:
            _log.exception(
                "The end of this worker could not be recorded: other workers will find what is left"
            )
            self._status = Exit.CRASHED
        # Or it would keep alive what nobody runs.
        self._pulse.end()
        self._release()
        await self._places.close()
        await self._teller.close()
        await self._hooks.close()

    def _die(self, what: str) -> None:
        _log.error("%s of this worker ended; it stops", what)
        self._status = Exit.CRASHED
        self.stop()

    def _loop_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            _log.error("A loop of this worker died", exc_info=task.exception())
            self._die("A loop")

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
        if self._attempts and (anything or worker_topic(self.identity) in topics):
            self._pulse.kick()

    def _errand(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.create_task(work)
        self._errands.add(task)

        def done(task: asyncio.Task[object]) -> None:
            self._errands.discard(task)
            self._changed.set()

        task.add_done_callback(done)
