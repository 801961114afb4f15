"""One job in a worker's hands, from its claim until its outcome is durable."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic, time
from typing import Literal, Protocol, TypeAlias

import msgspec

from perdure.model.codec import storable_text
from perdure.model.job import SECOND, Claimed, Lease
from perdure.model.lifecycle import TRACE, Canceled, Continued, Failed, Outcome, Released, Succeeded
from perdure.worker.context import JobContext
from perdure.worker.handler import Handler

Why: TypeAlias = Literal["timeout", "cancel", "lost", "interrupt", "collapse"]
"""What a handler is stopped for: its time is up, somebody asked, its lease is gone, the worker stops.

``collapse``: the worker stops although nobody asked it to, so a handler has done it.
"""


NOT_COMMITTED = "job.success_not_committed"
CANCELLED_ITSELF = "job.cancelled_itself"
STOPPED = "Its worker stopped."
COLLAPSED = "Its worker's event loop was cancelled or stopped from inside, perhaps by this handler."

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
        "has_begun",
        "job",
        "lease",
        "outcome",
        "returned",
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
        self.has_begun = False
        self.why: Why | None = None
        self.outcome: Outcome | None = None
        self.returned: tuple[Outcome | None, float] | None = None
        """How and when its handler ended in a thread or a process, which the loop may not have heard yet."""
        self._begun: Callable[[Attempt], None] | None = None
        self._told: Callable[[Attempt], None] | None = None

    def start(self, begun: Callable[[Attempt], None], told: Callable[[Attempt], None]) -> None:
        """Run the handler. ``begun`` is called when its time begins, ``told`` once, when it ended or is given up."""
        self._begun, self._told = begun, told
        self.runner.start(self)

    def begin(self) -> None:
        """Its handler begins, and so does its time: not at the claim, for a process may have to load first."""
        self.has_begun = True
        if (allowed := self.allowed) is not None:
            self.deadline = monotonic() + allowed
            self.context.deadline_at = time() + allowed
        if self._begun is not None:
            self._begun(self)

    @property
    def ended(self) -> bool:
        return self._told is None

    def overdue(self, now: float) -> bool:
        """Whether it should have been given up by now. From any thread."""
        deadline = self.deadline
        return not self.ended and deadline is not None and now > deadline + self.handler.timeout_grace

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

    def interrupt(self, why: Literal["interrupt", "collapse"]) -> None:
        """The worker itself is cancelled. What ended a moment ago without a word was cancelled with it."""
        if self.ended and isinstance(self.outcome, Failed) and self.outcome.code == CANCELLED_ITSELF:
            self.why, self.outcome = why, None
        self.stop(why)

    def give_up(self) -> None:
        """It does not end: tell how it ends without it. What it does from here on counts for nothing."""
        self.end(None, self.started)

    def _judge(self, outcome: Outcome | None, now: float) -> Outcome | None:
        if self.why == "lost" and not self.context.has_succeeded:
            return None
        if self.why == "timeout" or (self.deadline is not None and now > self.deadline):
            if isinstance(outcome, Failed) and outcome.kind == "timeout":
                return outcome  # which says what took so long
            return Failed(self.lease, "timeout", message=f"It ran for more than {self.allowed} s.")
        if isinstance(outcome, Succeeded):
            return self._succeeded_itself(outcome) if self.context.has_succeeded else outcome
        if self.why in ("interrupt", "collapse") and (outcome is None or isinstance(outcome, Failed)):
            return self._stopped()
        if outcome is not None:
            return outcome
        if self.why == "lost":
            return _uncommitted(self.lease)  # or it was, after all: then this is refused
        if self.context.cancel_requested:  # which a save may have told before anybody stopped it
            return Canceled(self.lease, "cancel requested")
        message = "CancelledError: the handler cancelled itself."
        return Failed(self.lease, "error", CANCELLED_ITSELF, message)

    def _stopped(self) -> Outcome:
        """How an attempt ends that its worker does not wait for."""
        if not self.has_begun:
            return Released(self.lease)
        if self.why == "collapse":
            return Failed(self.lease, "lost", message=COLLAPSED)
        return Failed(self.lease, "interrupted", message=STOPPED)

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

    def last(self) -> Outcome | None:
        """How it ends with its worker: by its own outcome if it has one."""
        if self.outcome is None and self.returned is not None:
            self.outcome = self._judge(*self.returned)
            if self.outcome is None:
                return None
        return self.final() if self.outcome else self._stopped()

    def final(self) -> Outcome:
        """The outcome, with the last report of its handler and what it enqueues or appends."""
        assert self.outcome is not None, "a lost lease records nothing"
        if (children := self.context.children) and isinstance(self.outcome, (Succeeded, Continued)):
            self.outcome = msgspec.structs.replace(self.outcome, children=children)
        if self.job.workflow_id is not None and isinstance(self.outcome, (Succeeded, Continued)):
            appended = self.context.appended or self.outcome.appended
            self.outcome = msgspec.structs.replace(self.outcome, appended=appended)
            if isinstance(self.outcome, Succeeded):
                self.outcome = msgspec.structs.replace(self.outcome, workflow=self.job.workflow_id)
        if (report := self.context.take_report()) is not None:
            self.outcome = msgspec.structs.replace(self.outcome, report=report)
        return self.outcome


def _uncommitted(lease: Lease) -> Failed:
    """What is told of a handler that succeeded by itself; refused if its transaction was committed."""
    message = "ctx.succeed() was called, but its transaction was not committed."
    return Failed(lease, "error", NOT_COMMITTED, message)
