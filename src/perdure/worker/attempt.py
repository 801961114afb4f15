"""An attempt: one claimed job in a worker, from its claim until its outcome is durable."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, time
from typing import Literal, Protocol, TypeAlias

import msgspec

from perdure.model.job import SECOND, Claimed, Lease
from perdure.model.lifecycle import Continued, Outcome, Succeeded
from perdure.worker.context import JobContext
from perdure.worker.handler import Handler

StopReason: TypeAlias = Literal["timeout", "cancel", "lost", "unrenewed", "interrupt", "loop_stopped"]
"""Why a handler is stopped.

``timeout``: its timeout has passed.
``cancel``: a cancel was requested.
``lost``: its lease is lost.
``unrenewed``: the worker could not renew its lease for so long that other workers may start the job.
``interrupt``: the worker stops.
``loop_stopped``: a handler cancelled or stopped the event loop.
"""


class Runner(Protocol):
    """Runs handlers. It calls ``attempt.end`` in the event loop's thread when a handler has ended."""

    def start(self, attempt: Attempt) -> None:
        """Run the attempt's handler, and call ``attempt.begin`` when the handler begins."""
        ...

    def stop(self, attempt: Attempt) -> None:
        """Stop the handler as far as it can be stopped."""
        ...

    def give_up(self, attempt: Attempt) -> None:
        """Continue without the handler, which was asked to stop and did not."""
        ...


class Attempt:
    """A claimed job, its handler and its outcome.

    It is used in the event loop's thread, unless a docstring says otherwise.
    """

    __slots__ = (
        "_on_begin",
        "_on_end",
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
        "stop_reason",
        "timeout",
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
        self.timeout = job.timeout
        self.deadline: float | None = None
        self.has_begun = False
        self.stop_reason: StopReason | None = None
        self.outcome: Outcome | None = None
        self.returned: tuple[Outcome | None, float] | None = None
        """How and when the handler ended in a thread or a process. The event loop may not know this yet."""
        self._on_begin: Callable[[Attempt], None] | None = None
        self._on_end: EndCallback | None = None

    def start(self, on_begin: Callable[[Attempt], None], on_end: EndCallback) -> None:
        """Run the handler. ``on_begin`` is called when its timeout starts, ``on_end`` when it ends or is given up."""
        self._on_begin, self._on_end = on_begin, on_end
        self.runner.start(self)

    def begin(self) -> None:
        """Note that the handler begins, and start its timeout.

        The timeout does not start at the claim, because a child process may have to load first.
        """
        self.has_begun = True
        if (allowed := self.allowed) is not None:
            self.deadline = monotonic() + allowed
            self.context.deadline_at = time() + allowed
        if self._on_begin is not None:
            self._on_begin(self)

    @property
    def ended(self) -> bool:
        return self._on_end is None

    def overdue(self, now: float) -> bool:
        """Whether the attempt should have been given up by now. Called from any thread."""
        deadline = self.deadline
        return not self.ended and deadline is not None and now > deadline + self.handler.timeout_grace

    def stop(self, reason: StopReason) -> None:
        """Ask the handler to end. The first reason counts, except that a lost lease overrides all other reasons."""
        if self.ended or (self.stop_reason is not None and reason != "lost"):
            return
        if reason in ("lost", "unrenewed") and self.context.has_succeeded:
            return  # the handler recorded its success itself, which ended the lease
        again, self.stop_reason = self.stop_reason is not None, reason
        self.context.cancel_requested = True
        if not again:
            self.runner.stop(self)

    def end(self, outcome: Outcome | None, now: float) -> None:
        """Note that the handler has ended with this outcome.

        The outcome is None if the handler was stopped or cancelled.
        """
        if self._on_end is None:
            return
        on_end, self._on_end = self._on_end, None
        on_end(self, outcome, now)

    def give_up(self) -> None:
        """End the attempt although its handler still runs.

        The handler's outcome and reports are ignored from now on.
        """
        self.end(None, self.started)

    @property
    def allowed(self) -> float | None:
        """Seconds that the handler may take."""
        return None if self.timeout is None else self.timeout / SECOND

    @property
    def size(self) -> int:
        """Approximate bytes of the job's arguments and of the outcome."""
        return len(self.job.payload) + len(msgspec.json.encode(self.outcome))

    def final_outcome(self) -> Outcome:
        """The outcome, with the last report of the handler and the jobs or steps that the handler adds."""
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


EndCallback: TypeAlias = Callable[[Attempt, Outcome | None, float], None]
"""Called with an attempt, how its handler ended, and when it ended."""
