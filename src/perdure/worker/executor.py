"""The life of a claimed job, from top to bottom: claimed, prepare, run, classify, record, report.

The cycle claims jobs and records outcomes in batches (cycle.py). This module does the work in between for each job, and
holds the attempts of one worker. It is used in the event loop's thread, unless a docstring says otherwise.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any, Literal, Protocol

from perdure.errors import StoreAway
from perdure.internal import failpoints, journal
from perdure.model.codec import storable_text
from perdure.model.job import Claimed, Lease
from perdure.model.lifecycle import TRACE, Canceled, Change, Failed, Outcome, Released, Succeeded
from perdure.ops.finish import find_recorded
from perdure.ops.worker import Beat
from perdure.worker.attempt import Attempt
from perdure.worker.background import BackgroundTasks
from perdure.worker.context import JobContext
from perdure.worker.cycle import Cycle
from perdure.worker.deadlines import Deadlines
from perdure.worker.handler import Handler
from perdure.worker.health import Health
from perdure.worker.hooks import Hooks
from perdure.worker.identity import Identity
from perdure.worker.live_settings import QueueSettingsReader
from perdure.worker.operations import WorkerOperations
from perdure.worker.options import WorkerOptions
from perdure.worker.orphan_claims import OrphanClaims
from perdure.worker.outcome import note
from perdure.worker.release_claims import ClaimReleaser
from perdure.worker.reporting import OutcomeReporter
from perdure.worker.reports import Reports
from perdure.worker.slots import Slots

NOT_COMMITTED = "job.success_not_committed"
CANCELED_ITSELF = "job.canceled_itself"
WORKER_STOPPED = "Its worker stopped."
SAVE_WAITED = "Its time ran out while ctx.save() waited for the database."
NOT_RENEWED = "Its worker could not renew its lease, because the database did not answer it."
LOOP_STOPPED = "Its worker's event loop was canceled or stopped from inside, perhaps by this handler."

_log = logging.getLogger("perdure.worker")


class Owner(Protocol):
    """The part of the worker that its executor needs."""

    def after_claim(self) -> None:
        """Called when the jobs of a cycle have been started."""
        ...

    def slots_lost(self) -> None:
        """Called when every thread is taken by a handler that does not end."""
        ...

    def task_failed(self, task: asyncio.Task[Any]) -> None:
        """Called when a background task has ended with an error."""
        ...


class Executor:
    """Runs the claimed jobs of one worker."""

    def __init__(
        self,
        worker: Owner,
        operations: WorkerOperations,
        handlers: Mapping[str, Handler],
        options: WorkerOptions,
        *,
        identity: Identity,
        slots: Slots,
        health: Health,
        hooks: Hooks,
    ) -> None:
        self._worker = worker
        self._operations = operations
        self._handlers = handlers
        self._identity = identity
        self._slots = slots
        self._health = health
        self._orphans = OrphanClaims()
        self._deadlines = Deadlines()
        self.attempts: dict[Lease, Attempt] = {}
        self.changed = asyncio.Event()
        """Set whenever ``idle`` may have changed."""
        self.background = BackgroundTasks(self.changed.set, worker.task_failed)
        self.reporter = OutcomeReporter(operations.store, hooks)
        self.reports = Reports(self.attempts.values(), operations, health, self._deadlines)
        self.cycle = Cycle(self, slots, operations, health, options)
        self.releaser = ClaimReleaser(operations, health, self.background.start, due=self.cycle.wake)
        self.queue_settings = QueueSettingsReader(operations.store, health, opened=self.cycle.wake)

    @property
    def identity(self) -> str:
        return self._identity.id

    @property
    def busy(self) -> bool:
        """Whether jobs run, or are being given back."""
        return bool(self.attempts or self.releaser)

    @property
    def idle(self) -> bool:
        """Whether nothing runs and every outcome is recorded. If the cycle is dead: whether every handler has ended."""
        if self.cycle.dead:
            return all(attempt.ended for attempt in self.attempts.values())
        return not (self.attempts or self.background or self.cycle.busy)

    def claimed(self, jobs: Sequence[Claimed], identity: str) -> None:
        """Run these jobs, which were claimed under this identity."""
        self.changed.set()
        if jobs and (identity != self._identity.id or not self.cycle.claiming):
            self.releaser.give_back([job.lease for job in jobs])
            return
        for job in jobs:
            self._run(self._prepare(job))
        self._worker.after_claim()

    def _prepare(self, job: Claimed) -> Attempt:
        """Create the job's context, choose where the job runs, and take a slot."""
        handler, identity = self._handlers[job.task], self._identity
        context = JobContext(
            job,
            self._handlers,
            worker=identity.id,
            operations=self._operations,
            on_report=self.reports.note_pending,
        )
        context.config_text = identity.config_of(job.task, handler.name)
        attempt = Attempt(job, handler, context, self._slots.runner_of(job, handler), started=monotonic())
        attempt.timeout = self.queue_settings.timeout_of(job, handler)
        self.attempts[attempt.lease] = attempt
        self._slots.take(attempt)
        return attempt

    def _run(self, attempt: Attempt) -> None:
        """Start the handler on the loop, in a thread or in a process. ``_ended`` is called when it has ended."""
        if journal.enabled:
            journal.note("started", [attempt.job.id], token=attempt.job.token, worker=self.identity)
        self.reporter.began(attempt)
        attempt.start(self._deadlines.begin, self._ended)

    def _ended(self, attempt: Attempt, outcome: Outcome | None, now: float) -> None:
        attempt.outcome = classify(attempt, outcome, now)
        self.changed.set()
        self._deadlines.end(attempt)
        if journal.enabled:
            note("ended", attempt.lease, attempt.outcome, why=attempt.stop_reason)
        if attempt.outcome is None:
            self._report(attempt, None, accepted=False)
        else:
            self._record(attempt)
        if attempt.stop_reason is not None and self._slots.all_lost:
            self._worker.slots_lost()

    def _record(self, attempt: Attempt) -> None:
        """Record the outcome with the next cycle, which calls ``recorded``."""
        if failpoints.armed:
            failpoints.reach("after_handler_before_flush")
        self.reports.when_written(attempt, self.cycle.record)

    def recorded(self, attempt: Attempt, change: Change | None, *, accepted: bool) -> None:
        """Called by the cycle when the outcome is durable, or was refused because the lease is gone.

        ``change``: what the outcome changed in the job's row; None for a success without reports, children or steps.
        """
        if not accepted and attempt.context.has_succeeded:
            self.background.start(self._confirm_success(attempt))
            return
        if journal.enabled:
            note("accepted" if accepted else "refused", attempt.lease, attempt.outcome)
        self._report(attempt, change, accepted=accepted)

    async def _confirm_success(self, attempt: Attempt) -> None:
        """Find out whether the handler's own transaction, which records its success, was committed.

        If it was committed, the success counts.
        """
        success = attempt.context.success
        assert success is not None
        store = self._operations.store
        recorded = await self._health.until_answered(lambda: store.aperform(find_recorded, [success]))
        if recorded:
            _log_error_after_success(attempt)
            attempt.outcome = success
        else:
            attempt.context.success = None
        self.recorded(attempt, None, accepted=bool(recorded))

    def _report(self, attempt: Attempt, change: Change | None, *, accepted: bool) -> None:
        """Free the slot, and report the end to the log, to subscribers and to callers that wait."""
        del self.attempts[attempt.lease]
        self._slots.leave(attempt)
        self.changed.set()
        if not self.cycle.is_under_way:
            self.cycle.wake()  # otherwise no cycle would claim for the freed slot
        if accepted:
            self.reporter.ended(attempt, change)
        else:
            self.reporter.lost(attempt)

    def compare(self, before: Sequence[Lease], believed: set[Lease], beat: Beat) -> None:
        """Compare the running attempts with the database's view, as a heartbeat has read it.

        ``before``: the leases that ran just before the query. ``believed``: the leases that the database believes run.
        """
        for lease in before:
            attempt = self.attempts.get(lease)
            if attempt is not None and not attempt.ended and lease not in believed:
                attempt.stop("lost")
        for lease in beat.cancel_requested:
            if attempt := self.attempts.get(lease):
                attempt.stop("cancel")
        unknown = believed.difference(before, self.attempts)
        if lost := self._orphans.lost(
            unknown, begun=self.cycle.begun, started_through=self.cycle.started_through
        ):
            _log.warning("Giving back %d jobs whose claim was never answered", len(lost))
            self.releaser.give_back(lost)

    def interrupt(self, reason: Literal["interrupt", "loop_stopped"]) -> None:
        """Stop all attempts, because the worker was cancelled.

        A handler that has just ended with a cancellation was cancelled together with the worker. So it counts as
        stopped, not as failed.
        """
        for attempt in self.attempts.values():
            outcome = attempt.outcome
            if attempt.ended and isinstance(outcome, Failed) and outcome.code == CANCELED_ITSELF:
                attempt.stop_reason, attempt.outcome = reason, None
            attempt.stop(reason)


def classify(attempt: Attempt, outcome: Outcome | None, now: float) -> Outcome | None:
    """The outcome to record for a handler that has ended; None if nothing may be recorded.

    ``outcome``: the handler's own outcome, after it returned or raised; None if it was stopped or cancelled.
    """
    context, reason = attempt.context, attempt.stop_reason
    if reason == "lost" and not context.has_succeeded:
        return None
    if reason == "timeout" or (attempt.deadline is not None and now > attempt.deadline):
        if isinstance(outcome, Failed) and outcome.kind in ("timeout", "interrupted"):
            return outcome  # the message says what took so long
        if attempt.deadline is not None and context.save_call.was_waiting(attempt.deadline):
            return Failed(attempt.lease, "interrupted", StoreAway.code, SAVE_WAITED)
        return Failed(attempt.lease, "timeout", message=f"It ran for more than {attempt.allowed} s.")
    if isinstance(outcome, Succeeded):
        return _returned_after_success(attempt, outcome) if context.has_succeeded else outcome
    if reason in ("interrupt", "loop_stopped", "unrenewed") and (
        outcome is None or isinstance(outcome, Failed)
    ):
        return stopped(attempt)
    if outcome is not None:
        return outcome
    if reason == "lost":
        return _uncommitted(attempt)  # refused if the success was committed after all
    if context.cancel_requested:  # ctx.save() may have learned of the cancel before the handler was stopped
        return Canceled(attempt.lease, "cancel requested")
    message = "CancelledError: the handler canceled itself."
    return Failed(attempt.lease, "error", CANCELED_ITSELF, message)


def stopped(attempt: Attempt) -> Outcome:
    """The outcome of an attempt for which its worker no longer waits."""
    if not attempt.has_begun:
        return Released(attempt.lease)
    if attempt.stop_reason == "loop_stopped":
        return Failed(attempt.lease, "lost", message=LOOP_STOPPED)
    if attempt.stop_reason == "unrenewed":
        return Failed(attempt.lease, "interrupted", message=NOT_RENEWED)
    return Failed(attempt.lease, "interrupted", message=WORKER_STOPPED)


def last_outcome(attempt: Attempt) -> Outcome | None:
    """The outcome to record when the worker ends; None if nothing may be recorded. Called from any thread."""
    if attempt.outcome is None and attempt.returned is not None:
        attempt.outcome = classify(attempt, *attempt.returned)
        if attempt.outcome is None:
            return None
    return attempt.final_outcome() if attempt.outcome else stopped(attempt)


def _returned_after_success(attempt: Attempt, outcome: Succeeded) -> Failed:
    if outcome.result not in (None, "null"):
        _log.warning(
            "Job %s of %s returned a value after its success was written: ctx.succeed(value, conn=...) keeps one",
            attempt.job.id,
            attempt.job.task,
        )
    return _uncommitted(attempt)


def _uncommitted(attempt: Attempt) -> Failed:
    """The outcome of a handler that called ctx.succeed().

    If that transaction was committed, the database refuses this outcome, and the success counts.
    """
    message = "ctx.succeed() was called, but its transaction was not committed."
    return Failed(attempt.lease, "error", NOT_COMMITTED, message)


def _log_error_after_success(attempt: Attempt) -> None:
    outcome = attempt.outcome
    if isinstance(outcome, Failed) and outcome.code != NOT_COMMITTED:
        text = storable_text(outcome.trace or outcome.message, TRACE)
        _log.error("Job %s had succeeded, and then: %s", attempt.job.id, text)
