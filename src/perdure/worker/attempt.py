"""One job in a worker's hands, from its claim until its outcome is durable."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic, time
from typing import Literal, Protocol, TypeAlias

import msgspec

from perdure.model.codec import storable_text
from perdure.model.job import SECOND, Claimed, Lease
from perdure.model.lifecycle import TRACE, Canceled, Continued, Failed, Outcome, Succeeded
from perdure.worker.context import JobContext
from perdure.worker.handler import Handler

Why: TypeAlias = Literal["timeout", "cancel", "lost", "interrupt"]
"""What a handler is stopped for: its time is up, somebody asked, its lease is gone, the worker stops."""


NOT_COMMITTED = "job.success_not_committed"
CANCELLED_ITSELF = "job.cancelled_itself"
STOPPED = "Its worker stopped."

_log = logging.getLogger("perdure.worker")


class Runner(Protocol):
    """Where handlers run. Whatever ends there is told once, in the event loop's thread."""

    def start(self, attempt: Attempt) -> None:
        """Run its handler, and tell the attempt when that begins."""
        ...

    def stop(self, attempt: Attempt) -> None:
        """Stop the handler as far as it can be stopped."""
        ...

    def give_up(self, attempt: Attempt) -> None:
        """The handler was told to stop and did not: go on without it."""
        ...


class Attempt:
    """A claimed job and what becomes of it. Belongs to the event loop's thread."""

    __slots__ = (
        "_begun",
        "_told",
        "context",
        "deadline",
        "handler",
        "job",
        "lease",
        "outcome",
        "runner",
        "started",
        "why",
    )

    def __init__(
        self, job: Claimed, handler: Handler, context: JobContext, runner: Runner, *, started: float
    ) -> None:
        self.job = job
        self.lease: Lease = job.lease
        self.handler = handler
        self.context = context
        self.runner = runner
        self.started = started
        self.deadline: float | None = None
        self.why: Why | None = None
        self.outcome: Outcome | None = None
        self._begun: Callable[[Attempt], None] | None = None
        self._told: Callable[[Attempt], None] | None = None

    def start(self, begun: Callable[[Attempt], None], told: Callable[[Attempt], None]) -> None:
        """Run the handler. ``begun`` is called when its time begins, ``told`` once, when it ended or is given up."""
        self._begun, self._told = begun, told
        self.runner.start(self)

    def begin(self) -> None:
        """Its handler begins, and so does its time: not at the claim, for a process may have to load first."""
        if (allowed := self.allowed) is not None:
            self.deadline = monotonic() + allowed
            self.context.deadline_at = time() + allowed
        if self._begun is not None:
            self._begun(self)

    @property
    def ended(self) -> bool:
        return self._told is None

    def stop(self, why: Why) -> None:
        """Ask the handler to end. The first reason counts, except that a lost lease overrides all others."""
        if self.ended or (self.why is not None and why != "lost"):
            return
        if why == "lost" and self.context.has_succeeded:
            return  # of its own accord: what follows runs after the fact
        again, self.why = self.why is not None, why
        self.context.cancel_requested = True
        if not again:
            self.runner.stop(self)

    def end(self, outcome: Outcome | None, now: float) -> None:
        """The handler has ended so, or stopped without a word."""
        if self._told is None:
            return
        told, self._told = self._told, None
        self.outcome = self._judge(outcome, now)
        told(self)

    def interrupt(self) -> None:
        """The worker itself is cancelled. What ended a moment ago without a word was cancelled with it."""
        if self.ended and isinstance(self.outcome, Failed) and self.outcome.code == CANCELLED_ITSELF:
            self.outcome = Failed(self.lease, "interrupted", message=STOPPED)
        self.stop("interrupt")

    def give_up(self) -> None:
        """It does not end: tell how it ends without it. What it does from here on counts for nothing."""
        self.end(None, self.started)

    def _judge(self, outcome: Outcome | None, now: float) -> Outcome | None:
        if self.why == "lost" and not self.context.has_succeeded:
            return None
        if self.why == "timeout" or (self.deadline is not None and now > self.deadline):
            return Failed(self.lease, "timeout", message=f"It ran for more than {self.allowed} s.")
        if isinstance(outcome, Succeeded):
            return self._succeeded_itself(outcome) if self.context.has_succeeded else outcome
        if self.why == "interrupt" and (outcome is None or isinstance(outcome, Failed)):
            return Failed(self.lease, "interrupted", message=STOPPED)
        if outcome is not None:
            return outcome
        if self.why == "lost":
            return _uncommitted(self.lease)  # or it was, after all: then this is refused
        if self.context.cancel_requested:  # which a save may have told before anybody stopped it
            return Canceled(self.lease, "cancel requested")
        message = "CancelledError: the handler cancelled itself."
        return Failed(self.lease, "error", CANCELLED_ITSELF, message)

    def _succeeded_itself(self, outcome: Succeeded) -> Failed:
        if outcome.result not in (None, "null"):
            _log.warning(
                "Job %s of %s returned a value after its success was written: ctx.succeed(value, conn=...) keeps one",
                self.job.id,
                self.job.task,
            )
        return _uncommitted(self.lease)

    def overrule(self, success: Succeeded) -> None:
        """The handler's own transaction was committed: an error after it is only logged."""
        outcome, self.outcome = self.outcome, success
        if isinstance(outcome, Failed) and outcome.code != NOT_COMMITTED:
            said = storable_text(outcome.trace or outcome.message, TRACE)
            _log.error("Job %s had succeeded, and then: %s", self.job.id, said)

    @property
    def allowed(self) -> float | None:
        """Seconds that its handler may take."""
        return None if self.job.timeout is None else self.job.timeout / SECOND

    def final(self) -> Outcome:
        """The outcome, with the last report of its handler and what it enqueues or appends."""
        assert self.outcome is not None, "a lost lease records nothing"
        if (children := self.context.children) and isinstance(self.outcome, (Succeeded, Continued)):
            self.outcome = msgspec.structs.replace(self.outcome, children=children)
        if self.job.workflow_id is not None and isinstance(self.outcome, (Succeeded, Continued)):
            growth = self.context.growth or self.outcome.appended
            self.outcome = msgspec.structs.replace(self.outcome, appended=growth)
            if isinstance(self.outcome, Succeeded):
                self.outcome = msgspec.structs.replace(self.outcome, workflow=self.job.workflow_id)
        if (report := self.context.take_report()) is not None:
            self.outcome = msgspec.structs.replace(self.outcome, report=report)
        return self.outcome


def _uncommitted(lease: Lease) -> Failed:
    """What is told of a handler that succeeded by itself; refused if its transaction was committed."""
    message = "ctx.succeed() was called, but its transaction was not committed."
    return Failed(lease, "error", NOT_COMMITTED, message)
