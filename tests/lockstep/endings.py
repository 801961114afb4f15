"""What each outcome does to a job, implemented a second time, from the design and not from the code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from perdure.model.backoff import Backoff
from perdure.model.job import SECOND
from perdure.model.lifecycle import (
    Canceled,
    Continued,
    Failed,
    Outcome,
    Released,
    Report,
    Snoozed,
    Succeeded,
    Throttled,
)

YEAR = 366 * 86_400 * SECOND
CRASHES_FORGIVEN = 2


@dataclass
class Job:
    """A job as the stores should have it. The names are those of ``JobRow``."""

    id: str
    task: str
    queue: str
    tenant: str | None
    payload: str
    priority: int
    max_attempts: int
    timeout: int | None
    run_at: int
    expires_at: int | None
    unique_key: str | None
    concurrency_key: str | None
    created_at: int
    state: str = "ready"
    run: int = 1
    attempt: int = 0
    token: int = 0
    worker: str | None = None
    started_at: int | None = None
    finished_at: int | None = None
    stage: str | None = None
    progress_done: int | None = None
    progress_total: int | None = None
    progress_message: str | None = None
    checkpoint: str | None = None
    result: str | None = None
    reason: str | None = None
    error_kind: str | None = None
    error_code: str | None = None
    error_message: str | None = None
    cancel_requested_at: int | None = None
    throttles: int = 0
    snoozes: int = 0
    crashes: int = 0
    interruptions: int = 0

    @property
    def active(self) -> bool:
        return self.state in ("ready", "running")

    def end(self, state: str, now: int, reason: str | None = None) -> None:
        self.state, self.worker, self.finished_at = state, None, now
        self.reason = reason or self.reason

    def wait(self, now: int, delay: int) -> None:
        """Back into the queue, where no attempt is under way."""
        self.state, self.worker, self.started_at = "ready", None, None
        self.run_at = now + min(delay, YEAR)

    def blame(self, outcome: Outcome) -> None:
        """The error of the row is this attempt's, if it was one."""
        failure = outcome if isinstance(outcome, Failed) else None
        self.error_kind = None if failure is None else failure.kind
        self.error_code = None if failure is None else failure.code or f"job.{failure.kind}"
        self.error_message = None if failure is None else failure.message


class Past(NamedTuple):
    """An attempt that is over while its job is not: what the ledger keeps of it."""

    run: int
    attempt: int
    kind: str
    code: str | None = None
    delay: int | None = None
    decided_by: str | None = None


class Policy(NamedTuple):
    """What decides about a job besides itself."""

    backoff: Backoff
    max_crashes: int | None


def settle(job: Job, outcome: Outcome, policy: Policy, *, now: int, roll: float) -> Past | None:
    """Change the job as its attempt's outcome demands; return the attempt if another may follow."""
    match outcome:
        case Succeeded():
            # Also under a cancel: the effect happened.
            job.blame(outcome)
            job.result, job.reason = outcome.result, None
            job.end("succeeded", now, outcome.reason)
        case _ if job.cancel_requested_at is not None:
            job.blame(outcome)
            job.end("canceled", now)
        case Canceled(reason=reason):
            job.blame(outcome)
            job.end("canceled", now, reason)
        case Failed():
            return _fail(job, outcome, policy, now, roll)
        case Continued():
            return _go_on(job, outcome, now)
        case Released(delay=delay):
            _give_back(job, delay, now)
        case Snoozed(delay=delay):
            job.snoozes += 1
            return _put_off(job, "snoozed", delay, "handler", now)
        case Throttled(delay=None):
            job.throttles += 1
            return _put_off(job, "throttled", pause(policy.backoff, job.throttles, None, roll), "policy", now)
        case Throttled(delay=int(delay)):
            job.throttles += 1
            return _put_off(job, "throttled", delay, "handler", now)
    return None


def _fail(job: Job, failure: Failed, policy: Policy, now: int, roll: float) -> Past | None:
    job.blame(failure)
    crashed = failure.kind in ("lost", "panic")
    job.crashes += crashed
    attempt = job.attempt
    if failure.kind == "interrupted":
        job.interruptions += 1
        delay, decided_by = 0, "interruption"
        job.attempt -= 1
    elif final := _why_final(job, failure, policy):
        job.end("failed", now, final)
        return None
    elif failure.kind == "lost" and job.crashes == 1:
        delay, decided_by = 0, "first loss"
    else:
        code = failure.code or f"job.{failure.kind}"
        delay = pause(policy.backoff, attempt, code, roll)
        decided_by = "code" if code in policy.backoff.codes else "policy"
        if (failure.delay or 0) > delay:
            delay, decided_by = min(failure.delay or 0, YEAR), "handler"
    job.wait(now, delay)
    return Past(job.run, attempt, failure.kind, job.error_code, delay, decided_by)


def _why_final(job: Job, failure: Failed, policy: Policy) -> str | None:
    if failure.kind == "fatal":
        return "fatal"
    if policy.max_crashes is not None and job.crashes >= CRASHES_FORGIVEN + policy.max_crashes:
        return "crashes"
    return "attempts" if job.attempt >= job.max_attempts else None


def _go_on(job: Job, outcome: Continued, now: int) -> Past:
    """A new run, as after a success."""
    past = Past(job.run, job.attempt, "continued", None, outcome.delay, "handler")
    job.run, job.attempt, job.crashes, job.interruptions = job.run + 1, 0, 0, 0
    job.blame(outcome)
    job.wait(now, outcome.delay)
    return past


def _put_off(job: Job, kind: str, delay: int, decided_by: str, now: int) -> Past:
    """Run again later. The attempt does not count: the next one has the same number."""
    past = Past(job.run, job.attempt, kind, None, min(delay, YEAR), decided_by)
    _give_back(job, delay, now)
    return past


def _give_back(job: Job, delay: int, now: int) -> None:
    job.attempt -= 1
    job.wait(now, delay)


def pause(backoff: Backoff, n: int, code: str | None, roll: float) -> int:
    """How long to wait after the n-th failure."""
    if code is not None and code in backoff.codes:
        return round(backoff.codes[code] * SECOND)
    return int(longest_pause(backoff, n) * roll)


def longest_pause(backoff: Backoff, n: int) -> int:
    return min(round(backoff.base * SECOND) << (n - 1), round(backoff.cap * SECOND))


def tell(job: Job, report: Report, *, lenient: bool) -> bool:
    """Store a handler's report. With contradictory progress, store nothing or (lenient) all the rest."""
    done = job.progress_done if report.done is None else report.done
    total = job.progress_total if report.total is None else report.total
    true = 0 <= (done or 0) <= (total if total is not None else done or 0)
    if not true and not lenient:
        return False
    if true:
        job.progress_done, job.progress_total = done, total
    job.stage = report.stage or job.stage
    job.progress_message = report.message or job.progress_message
    job.checkpoint = report.checkpoint or job.checkpoint
    return true
