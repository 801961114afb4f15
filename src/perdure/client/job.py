"""The handle of a job: ``Job``."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

import msgspec

from perdure.errors import JobCanceled, JobFailed, JobGone, WaitTimeout
from perdure.model.job import ENDED, SECOND, JobRow, State
from perdure.model.json_text import read_json
from perdure.ops import browse
from perdure.ops.job_actions import CancelOutcome, RequeueOutcome
from perdure.ops.topics import ANYTHING
from perdure.ops.topics import ENDED as SOME_ENDED
from perdure.plan.plan import Plan, async_method, pause, perform, sync_method, wait_for
from perdure.plan.wakeup import Wakeup
from perdure.request.times import LONGEST, duration_us, from_us
from perdure.store.store import Store

if TYPE_CHECKING:
    from perdure.app import App
    from perdure.ops.enqueue import Enqueued

R_co = TypeVar("R_co", covariant=True)

FIRST_LOOK, SLOWEST_LOOK = 0.01, 0.5
"""Seconds between two reads of a job if no notification comes: the first pause, and the longest pause."""
LEAST_PAUSE = 0.01
"""The least seconds between two reads, even if there are many notifications."""
MOST_LOOKS = 2000
"""The most reads per second by all waiters of this process.

Without this limit, a thousand waiters would all read whenever a job ends.
"""

_waiters: set[Wakeup] = set()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_waiters.clear)


class JobError(NamedTuple):
    """The error of the last failed attempt."""

    kind: str
    code: str
    message: str
    trace: str | None


class Progress(NamedTuple):
    """The progress that a job reported."""

    done: int | None
    total: int | None
    message: str | None
    stage: str | None


class Job(msgspec.Struct, Generic[R_co], eq=False, weakref=True):
    """One job, as it was when last read; ``refresh`` reads it again."""

    # A struct is created in half the time of an ordinary object, and a bulk enqueue creates thousands of jobs.
    _app: App
    _decode: Callable[[str], object]
    id: str
    task: str
    queue: str | None = None
    state: State | None = None
    created: bool = False
    run: int = 1
    attempt: int = 0
    _row: JobRow | None = None

    def __repr__(self) -> str:
        return f"<Job {self.id} {self.task} {self.state}>"

    @property
    def store(self) -> Store:
        return self._app.store

    @property
    def result(self) -> R_co | None:
        """The handler's result; None until the job succeeded."""
        text = self._row.result if self._row else None
        return None if text is None else cast(R_co, self._decode(text))

    @property
    def error(self) -> JobError | None:
        row = self._row
        if row is None or row.error_kind is None:
            return None
        return JobError(row.error_kind, row.error_code or "", row.error_message or "", row.error_trace)

    @property
    def progress(self) -> Progress | None:
        row = self._row
        if (
            row is None
            or (row.progress_done, row.progress_total, row.progress_message, row.stage) == (None,) * 4
        ):
            return None
        return Progress(row.progress_done, row.progress_total, row.progress_message, row.stage)

    @property
    def meta(self) -> dict[str, Any]:
        text = self._row.meta if self._row else None
        return {} if text is None else read_json(text, dict[str, Any])

    @property
    def tags(self) -> list[str]:
        text = self._row.tags if self._row else None
        return [] if text is None else read_json(text, list[str])

    @property
    def reason(self) -> str | None:
        """Why the job is in its state, if a reason was recorded."""
        return self._row.reason if self._row else None

    @property
    def run_at(self) -> datetime | None:
        return from_us(self._row.run_at) if self._row else None

    @property
    def row(self) -> JobRow | None:
        """The whole stored row, as it was when last read."""
        return self._row

    def _refresh(self) -> Plan[Job[R_co]]:
        """Read the job again."""
        row = yield from perform(browse.get_job, self.id)
        if row is None:
            self.state = None
            raise JobGone
        return self._seen(row)

    def _join(self, timeout: float | timedelta | None = None) -> Plan[None]:
        """Wait until the job has succeeded, failed or been canceled."""
        yield from until_over(self.store, self._is_over, timeout)

    def _is_over(self) -> Plan[bool]:
        return (yield from self._refresh()).state in ENDED

    def _get(self, timeout: float | timedelta | None = None) -> Plan[R_co]:
        """Wait for the job and return its result, or raise JobFailed, JobCanceled, JobGone or WaitTimeout."""
        yield from self._join(timeout)
        if self.state == "failed":
            raise self._failed()
        if self.state == "canceled":
            canceled = JobCanceled(f"Job {self.id} of {self.task} was canceled.")
            canceled.job_id, canceled.task, canceled.attempt = self.id, self.task, self.attempt
            raise canceled
        return cast(R_co, self.result)

    def _failed(self) -> JobFailed:
        error = self.error or JobError("unknown", "unknown", "", None)
        most = self._row.max_attempts if self._row else self.attempt
        told = f"{error.code} ({error.kind}), attempt {self.attempt} of {most}"
        failed = JobFailed(f"Job {self.id} of {self.task} failed: {told}. Its error_message says more.")
        failed.job_id, failed.task, failed.attempt = self.id, self.task, self.attempt
        failed.error_kind, failed.error_code, failed.error_message, failed.error_trace = error
        return failed

    def _cancel(self, *, reason: str | None = None, by: str | None = None) -> Plan[CancelOutcome]:
        """Cancel the job, or ask the worker that runs it to stop."""
        return (yield from self._app._cancel_job(self.id, reason=reason, by=by))

    def _requeue(
        self, *, keep_checkpoint: bool = False, reason: str | None = None, by: str | None = None
    ) -> Plan[RequeueOutcome]:
        """Start a new run of a job that failed or was canceled."""
        act = self._app._requeue_job(self.id, keep_checkpoint=keep_checkpoint, reason=reason, by=by)
        return (yield from act)

    refresh, arefresh = sync_method(_refresh), async_method(_refresh)
    join, ajoin = sync_method(_join), async_method(_join)
    get, aget = sync_method(_get), async_method(_get)
    cancel, acancel = sync_method(_cancel), async_method(_cancel)
    requeue, arequeue = sync_method(_requeue), async_method(_requeue)

    def _seen(self, row: JobRow) -> Job[R_co]:
        self._row = row
        self.queue, self.state, self.run, self.attempt = row.queue, row.state, row.run, row.attempt
        return self

    def _enqueued(self, outcome: Enqueued) -> Job[R_co]:
        self.created = outcome.created
        self.queue, self.state, self.run, self.attempt = outcome[2:]
        return self


def until_over(
    store: Store, is_over: Callable[[], Plan[bool]], timeout: float | timedelta | None
) -> Plan[None]:
    """Wait until ``is_over`` returns True.

    ``is_over`` is called after notifications that some job ended, and from time to time, in case one is lost.
    """
    deadline = math.inf
    if timeout is not None:
        # A timeout that a caller computes from its own deadline may be negative.
        deadline = time.monotonic() + duration_us("timeout", timeout, least=-LONGEST) / SECOND
    if (yield from is_over()):
        return
    if time.monotonic() >= deadline:
        raise WaitTimeout
    wakeup = Wakeup()
    # Begin to listen before the next check, so that no end of the job is missed.
    end_listening = store.listen(partial(_wake, wakeup))
    _waiters.add(wakeup)
    try:
        yield from _look(wakeup, is_over, deadline)
    finally:
        _waiters.discard(wakeup)
        end_listening()


def _look(wakeup: Wakeup, is_over: Callable[[], Plan[bool]], deadline: float) -> Plan[None]:
    wait = FIRST_LOOK
    while not (yield from is_over()):
        looked = time.monotonic()
        if looked >= deadline:
            raise WaitTimeout
        # If no notification comes, this polls. It polls often at first, because most jobs are short.
        yield from wait_for(wakeup, seconds=min(wait, deadline - looked))
        wait = min(wait * 1.5, SLOWEST_LOOK)
        least = max(LEAST_PAUSE, len(_waiters) / MOST_LOOKS)
        early = min(looked + least, deadline) - time.monotonic()
        if early > 0:
            yield from pause(early)


def _wake(wakeup: Wakeup, topics: frozenset[str]) -> None:
    if not topics.isdisjoint((SOME_ENDED, ANYTHING)):
        wakeup.set()
