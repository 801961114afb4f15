"""The life of a job: its transitions, and what each outcome of an attempt does to the job.

Every function is pure. ``settle`` takes a job as read under its lock and returns the ``Change`` to write.
"""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias, assert_never

import msgspec

from perdure.model.backoff import MAX_DELAY, Backoff
from perdure.model.codec import storable_text
from perdure.model.job import MOST_COUNTED, Lease, NewJob, Span, State
from perdure.model.new_steps import NewSteps
from perdure.model.suspect import SUSPECT_AFTER

FailureKind: TypeAlias = Literal["error", "fatal", "timeout", "lost", "panic", "interrupted"]
FAILURE_CODES: dict[FailureKind, str] = {
    "error": "job.error",
    "fatal": "job.fatal",
    "timeout": "job.timeout",
    "lost": "job.lost",
    "panic": "job.panic",
    "interrupted": "job.interrupted",
}
"""The error code of a failure whose handler set no code."""

AttemptEvent: TypeAlias = Literal[
    "succeeded", "retried", "snoozed", "throttled", "continued", "given_back", "failed", "canceled"
]
"""How an attempt ended, as the log and subscribers name it."""

TRANSITIONS: dict[tuple[State | None, str], frozenset[State]] = {
    (None, "enqueue"): frozenset(("ready", "waiting", "open")),
    ("waiting", "release"): frozenset(("ready", "open")),
    ("waiting", "doom"): frozenset(("canceled",)),
    ("waiting", "cancel"): frozenset(("canceled",)),
    ("waiting", "expire"): frozenset(("canceled",)),
    ("ready", "claim"): frozenset(("running",)),
    ("ready", "cancel"): frozenset(("canceled",)),
    ("ready", "expire"): frozenset(("canceled",)),
    ("running", "succeed"): frozenset(("succeeded",)),
    ("running", "fail"): frozenset(("ready", "failed", "canceled")),
    ("running", "time out"): frozenset(("ready", "failed", "canceled")),
    ("running", "lose"): frozenset(("ready", "failed", "canceled")),
    ("running", "throttle"): frozenset(("ready", "canceled")),
    ("running", "snooze"): frozenset(("ready", "canceled")),
    ("running", "continue"): frozenset(("ready", "canceled")),
    ("running", "give back"): frozenset(("ready", "canceled")),
    ("running", "cancel"): frozenset(("canceled",)),
    ("open", "resolve"): frozenset(("succeeded", "failed", "canceled")),
    ("open", "time out"): frozenset(("succeeded", "failed", "canceled")),
    ("open", "event"): frozenset(("ready",)),
    ("open", "cancel"): frozenset(("canceled",)),
    ("succeeded", "requeue"): frozenset(("ready", "waiting", "open")),
    ("failed", "requeue"): frozenset(("ready", "waiting", "open")),
    ("canceled", "requeue"): frozenset(("ready", "waiting", "open")),
}
"""All transitions; docs/states.md is drawn from them."""

SHORT, LONG, TRACE = 200, 2_000, 16_384
"""The most characters to keep: of a short text such as an error code, of a message, and of a traceback."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A report of a running handler. None keeps the stored value."""

    stage: str | None = None
    done: int | None = None
    total: int | None = None
    message: str | None = None
    checkpoint: str | None = None


class Succeeded(msgspec.Struct, frozen=True, gc=False):
    """The handler returned."""

    event: ClassVar[AttemptEvent] = "succeeded"
    lease: Lease
    result: str | None = None
    reason: str | None = None
    report: Report | None = None
    children: tuple[NewJob, ...] = ()
    workflow: str | None = None
    """The id of the workflow, if the job is a step. Without it, the success of a step is refused."""
    appended: NewSteps | None = None


class Failed(msgspec.Struct, frozen=True):
    """The attempt failed. If the handler gave a ``delay``, the next attempt begins no earlier."""

    lease: Lease
    kind: FailureKind
    code: str | None = None
    message: str = ""
    trace: str | None = None
    delay: Span | None = None
    report: Report | None = None

    @property
    def event(self) -> AttemptEvent:
        return "given_back" if self.kind == "interrupted" else "retried"


class Snoozed(msgspec.Struct, frozen=True):
    """The handler asked to run again later. The attempt does not count."""

    event: ClassVar[AttemptEvent] = "snoozed"
    lease: Lease
    delay: Span
    report: Report | None = None


class Throttled(msgspec.Struct, frozen=True):
    """The handler hit an external limit. The attempt does not count. ``cool_queue``: whether its queue cools down."""

    event: ClassVar[AttemptEvent] = "throttled"
    lease: Lease
    delay: Span | None = None
    cool_queue: bool = True
    report: Report | None = None


class Continued(msgspec.Struct, frozen=True):
    """The attempt succeeded and asks for another run, which keeps the checkpoint."""

    event: ClassVar[AttemptEvent] = "continued"
    lease: Lease
    delay: Span = 0
    report: Report | None = None
    children: tuple[NewJob, ...] = ()
    appended: NewSteps | None = None


class Canceled(msgspec.Struct, frozen=True):
    """The handler asked to cancel its job."""

    event: ClassVar[AttemptEvent] = "canceled"
    lease: Lease
    reason: str
    report: Report | None = None


class Released(msgspec.Struct, frozen=True):
    """The worker gave the claim back before user code began."""

    event: ClassVar[AttemptEvent] = "given_back"
    lease: Lease
    delay: Span = 0
    report: Report | None = None


Outcome: TypeAlias = Succeeded | Failed | Snoozed | Throttled | Continued | Canceled | Released

PUT_OFF: tuple[AttemptEvent, ...] = (Snoozed.event, Throttled.event)
"""The kinds of attempts that postpone the job and do not count."""


def stripped(outcome: Outcome, why: str = "", *, dropped: str = "result.unencodable") -> Outcome:
    """Drop the data of an outcome that cannot be stored, and keep only how the attempt ended.

    ``why``: a sentence that says what the database refused. ``dropped``: the reason to store with a success that loses
    its result. A success with new jobs or steps becomes a failure, because it must not be stored without them.
    """
    if isinstance(outcome, Succeeded | Continued) and outcome.appended:
        message = f"Its steps could not be appended. {why}".strip()
        return Failed(outcome.lease, "error", "job.steps_refused", message)
    if isinstance(outcome, Succeeded | Continued) and outcome.children:
        message = f"Its own jobs could not be enqueued. {why}".strip()
        return Failed(outcome.lease, "error", "job.children_refused", message)
    if isinstance(outcome, Succeeded):
        return Succeeded(outcome.lease, None, dropped, workflow=outcome.workflow)
    return msgspec.structs.replace(outcome, report=None)


class Running(msgspec.Struct, frozen=True, gc=False):
    """A running job, read under its lock, with every column that ``settle`` needs."""

    id: str
    token: int
    queue: str
    run: int
    attempt: int
    max_attempts: int
    throttles: int
    crashes: int
    interruptions: int
    cancel_requested: bool
    progress_done: int | None
    progress_total: int | None
    backoff: Backoff
    max_crashes: int | None
    stage: str | None = None
    workflow: str | None = None

    @property
    def lease(self) -> Lease:
        return Lease(self.id, self.token)


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """The changes that an outcome makes to a running job's row.

    ``attempt_kind``: if set, the attempt is added to the table of attempts with this kind. ``keep_error``: the row
    keeps the error of the previous attempt. ``throttles`` and ``snoozes`` are added to the row's counts.
    """

    id: str
    token: int
    state: State
    run: int
    attempt: int
    delay: Span = 0
    queue_cools: Span | None = None
    """How long the job's queue cools down, if this outcome cooled it. This is not written to the job's row."""
    result: str | None = None
    reason: str | None = None
    error_kind: str | None = None
    error_code: str | None = None
    error_message: str | None = None
    error_trace: str | None = None
    keep_error: bool = False
    throttles: int = 0
    snoozes: int = 0
    crashes: int = 0
    interruptions: int = 0
    attempt_kind: str | None = None
    decided_by: str | None = None


def settle(job: Running, outcome: Outcome, *, roll: float) -> Change:
    """Decide what an outcome does to its job. ``roll`` is a random number in [0, 1), for the jitter of the back-off."""
    if isinstance(outcome, Succeeded):  # even if a cancel was requested: the handler's effects have happened
        return _change(job, "succeeded", result=outcome.result, reason=outcome.reason)
    if job.cancel_requested:
        return _stop(job, outcome)
    match outcome:
        case Failed():
            return fail(job, outcome, roll=roll)
        case Snoozed():
            return snooze(job, outcome)
        case Throttled():
            return throttle(job, outcome, roll=roll)
        case Continued():
            return go_on(job, outcome)
        case Canceled():
            return _cancel(job, outcome.reason)
        case Released():
            return _not_counted(job, outcome.delay)  # as if the job had never been claimed
        case _:
            assert_never(outcome)


def is_recorded(outcome: Outcome, state: str, kind: str | None) -> bool:
    """Whether the job's stored state, and the ``kind`` of its stored attempt, show that this outcome was recorded."""
    match outcome:
        case Succeeded():
            return state == "succeeded"
        case Failed():
            return state != "succeeded" and kind == outcome.kind
        case Snoozed() | Throttled() | Continued():
            return kind == outcome.event or (state == "canceled" and kind is None)
        case Canceled() | Released():
            return state != "succeeded" and kind is None
        case _:
            assert_never(outcome)


def event_of(outcome: Outcome, change: Change | None) -> AttemptEvent:
    """The event to report for an outcome.

    ``change``: the change of the outcome; None for a success without reports, new jobs and new steps.
    """
    if change is not None and (change.state == "failed" or change.state == "canceled"):
        return change.state
    return outcome.event


def fail(job: Running, failure: Failed, *, roll: float) -> Change:
    """Retry the job after a delay. A fatal error, the last attempt or one crash too many fails the job for good."""
    if failure.kind == "interrupted":
        return _interrupt(job, failure)
    crashes = min(job.crashes + (failure.kind in ("lost", "panic")), MOST_COUNTED)
    verdict = _last_word(job, failure, crashes)
    if verdict is not None:
        return _change(job, "failed", reason=verdict, crashes=crashes, **_error(failure))
    delay, decided_by = _wait(job, failure, crashes, roll)
    return _retry(job, failure, delay, decided_by, crashes=crashes)


def _interrupt(job: Running, failure: Failed) -> Change:
    """Make the job ready at once. The attempt does not count, but the interruption does."""
    counts = {
        "attempt": max(job.attempt - 1, 0),
        "interruptions": min(job.interruptions + 1, MOST_COUNTED),
    }
    return _retry(job, failure, 0, "interruption", **counts)


def snooze(job: Running, outcome: Snoozed) -> Change:
    """Run again later. The attempt does not count."""
    return _not_counted(job, outcome.delay, snoozes=1, attempt_kind=outcome.event, decided_by="handler")


def throttle(job: Running, outcome: Throttled, *, roll: float) -> Change:
    """Run again later. The attempt does not count. Without a delay, back off more each time this job is throttled."""
    delay, decided_by = outcome.delay, "handler"
    if delay is None:
        delay, decided_by = job.backoff.delay(job.throttles + 1, roll=roll), "policy"
    return _not_counted(job, delay, throttles=1, attempt_kind=outcome.event, decided_by=decided_by)


def go_on(job: Running, outcome: Continued) -> Change:
    """Begin a new run. The attempt that ended is stored with the kind ``continued``."""
    return _change(
        job,
        "ready",
        run=min(job.run + 1, MOST_COUNTED),
        attempt=0,
        delay=_bounded(outcome.delay),
        crashes=0,
        interruptions=0,
        attempt_kind=outcome.event,
        decided_by="handler",
    )


def _last_word(job: Running, failure: Failed, crashes: int) -> str | None:
    """Why there is no further attempt; None if there is a further attempt."""
    if failure.kind == "fatal":
        return "fatal"
    if crashes > job.crashes and job.max_crashes is not None and crashes - SUSPECT_AFTER >= job.max_crashes:
        return "crashes"
    if job.attempt >= job.max_attempts:
        return "attempts"
    return None


def _wait(job: Running, failure: Failed, crashes: int, roll: float) -> tuple[Span, str]:
    if failure.kind == "lost" and crashes == 1:
        return 0, "first loss"
    code = _code(failure)
    delay = job.backoff.delay(job.attempt, code=code, roll=roll)
    if failure.delay is not None and failure.delay > delay:
        return _bounded(failure.delay), "handler"
    return delay, "code" if code in job.backoff.codes else "policy"


def _code(failure: Failed) -> str:
    return failure.code or FAILURE_CODES[failure.kind]


def _retry(job: Running, failure: Failed, delay: Span, decided_by: str, **fields: object) -> Change:
    recorded = {"attempt_kind": failure.kind, "decided_by": decided_by, **_error(failure)}
    return _change(job, "ready", delay=delay, **recorded, **fields)


def _not_counted(job: Running, delay: Span, **fields: object) -> Change:
    return _change(
        job, "ready", attempt=max(job.attempt - 1, 0), delay=_bounded(delay), keep_error=True, **fields
    )


def _stop(job: Running, outcome: Outcome) -> Change:
    """Cancel the job as requested. However the attempt ended, it was the last."""
    if isinstance(outcome, Failed):
        return _change(job, "canceled", **_error(outcome))
    return _cancel(job, None)


def _cancel(job: Running, reason: str | None) -> Change:
    return _change(job, "canceled", reason=None if reason is None else storable_text(reason, LONG))


def _error(failure: Failed) -> dict[str, str | None]:
    return {
        "error_kind": failure.kind,
        "error_code": storable_text(_code(failure), SHORT),
        "error_message": storable_text(failure.message, LONG),
        "error_trace": None if failure.trace is None else storable_text(failure.trace, TRACE),
    }


def _change(job: Running, state: State, **fields: object) -> Change:
    change = Change(
        id=job.id,
        token=job.token,
        state=state,
        run=job.run,
        attempt=job.attempt,
        crashes=job.crashes,
        interruptions=job.interruptions,
    )
    return msgspec.structs.replace(change, **fields)


def _bounded(delay: Span) -> Span:
    return min(max(int(delay), 0), MAX_DELAY)
