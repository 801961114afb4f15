"""What a worker does when its event loop is given up.

A worker that owns its process ends the process. Any other worker gives up only the attempt that blocks the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from time import monotonic
from typing import Any

from perdure.model.job import SECOND
from perdure.plan.plan import run
from perdure.worker.attempt import Attempt
from perdure.worker.bounded_log import BoundedLog
from perdure.worker.heartbeat import Heartbeat
from perdure.worker.identity import Identity
from perdure.worker.last_record import abort_transactions, end_process, record_last
from perdure.worker.loop_watch import LoopWatch, Verdict
from perdure.worker.operations import WorkerOperations
from perdure.worker.options import STOP_GRACE, WorkerOptions
from perdure.worker.slots import Slots

_log = BoundedLog(logging.getLogger("perdure.worker"))


class LoopGuard:
    """The part of the worker that the watch of the event loop needs."""

    def __init__(
        self,
        attempts: Collection[Attempt],
        slots: Slots,
        heartbeat: Heartbeat,
        identity: Identity,
        operations: WorkerOperations,
        options: WorkerOptions,
    ) -> None:
        """``attempts`` is a live view of the worker's attempts."""
        self._attempts = attempts
        self._slots = slots
        self._heartbeat = heartbeat
        self._identity = identity
        self._operations = operations
        self._options = options
        self._given_up: set[Attempt] = set()
        self._stop_asked_at: float | None = None
        self._watch = LoopWatch(self, interval=options.lease / SECOND / 3)
        self.start, self.end = self._watch.start, self._watch.stop

    def stop_asked(self) -> None:
        """Start the time to drain, because the worker was asked to stop. Called from any thread or a signal handler."""
        self._stop_asked_at = self._stop_asked_at or monotonic()

    @property
    def attempts(self) -> Sequence[Attempt]:
        return list(self._attempts)

    @property
    def drained_by(self) -> float | None:
        if self._stop_asked_at is None or not self._options.owns_process:
            return None
        return self._stop_asked_at + self._options.drain + STOP_GRACE

    def attempt_of(self, task: asyncio.Task[Any] | None) -> Attempt | None:
        return self._slots.attempt_of(task)

    def give_up_loop(self, verdict: Verdict, stack: str) -> None:
        blocker = verdict.blocker
        if self._options.owns_process:
            self._heartbeat.registers = False  # otherwise it would register anew once this worker is retired
            self._slots.note_returned()
            end_process(self._operations, self._identity.id, self.attempts, verdict, stack)
        elif blocker is not None and blocker not in self._given_up:
            # The program owns the process, so do not end it. Other attempts keep their leases until the loop answers.
            abort_transactions([blocker])
            run(self._operations.store, record_last(self._operations, [blocker], verdict.charge(stack)))
            self._given_up.add(blocker)
            _log.write(logging.ERROR, "%s It is given up. The loop is here:\n%s", verdict.message, stack)
