"""Reports the outcome of an attempt to the log, to subscribers and to callers that wait for the job."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import monotonic

from perdure.errors import PerdureError
from perdure.model.codec import MAX_PAYLOAD, storable_text
from perdure.model.job import SECOND
from perdure.model.lifecycle import Change, Failed, Succeeded, event_of
from perdure.ops.notify import notify
from perdure.ops.topics import ENDED
from perdure.request.events import EventName
from perdure.store.store import Store
from perdure.worker.attempt import Attempt
from perdure.worker.hooks import Hooks
from perdure.worker.operations import Queues
from perdure.worker.options import WorkerOptions
from perdure.worker.slots import Slots

PAUSE = 0.02
"""Seconds between two notifications for callers that wait for jobs.

A notification covers all jobs that ended meanwhile.
"""

LAST = 1.0
"""Seconds for the last notification of a worker that stops."""

REASON, NEWLINE = 200, "\n"
"""The log shows a failure's message up to the first ``NEWLINE``, and at most ``REASON`` characters of it."""

DROPPED = {
    "result.too_large": f"it takes more than {MAX_PAYLOAD} bytes of JSON",
    "result.unencodable": "it cannot be written as JSON",
    "result.refused": "the database refuses it",
}

SHOWN = 10
"""How many tasks the first log line of a worker names."""

_log = logging.getLogger("perdure.worker")


class OutcomeReporter:
    """Reports how attempts began and ended. It is used in the event loop's thread."""

    def __init__(self, store: Store, hooks: Hooks) -> None:
        self._store = store
        self._hooks = hooks
        self._notifying: asyncio.Task[None] | None = None
        self._again = False

    def began(self, attempt: Attempt) -> None:
        if self._hooks.wanted("started", attempt.job.task):
            self._hooks.attempt("started", attempt)

    def ended(self, attempt: Attempt, change: Change | None) -> None:
        outcome = attempt.outcome
        assert outcome is not None
        name = event_of(outcome, change)
        seconds = monotonic() - attempt.started
        # A final failure is shown even if logging is not configured.
        level = logging.WARNING if name == "failed" else logging.INFO
        if _log.isEnabledFor(level):
            self._log(level, attempt, name, seconds, change)
        if isinstance(outcome, Succeeded) and outcome.reason is not None:
            why = DROPPED.get(outcome.reason, outcome.reason)
            _log.warning("The result of job %s of %s is not kept: %s", attempt.job.id, attempt.job.task, why)
        if self._hooks.wanted(name, attempt.job.task):
            self._hooks.attempt(
                name,
                attempt,
                seconds=seconds,
                kind=outcome.kind if isinstance(outcome, Failed) else None,
                code=change.error_code if change else None,
                message=change.error_message if change else None,
            )
        if name in ("succeeded", "failed", "canceled"):
            self._notify()

    def lost(self, attempt: Attempt) -> None:
        _log.warning(
            "Job %s of %s was taken away from this worker; nothing of this attempt is recorded",
            attempt.job.id,
            attempt.job.task,
            extra={"job": attempt.job.id, "task": attempt.job.task, "outcome": "lease_lost"},
        )
        self._hooks.attempt("lease_lost", attempt)

    async def close(self) -> None:
        """Send the last notification at once, without a pause before it."""
        if self._notifying is None or self._notifying.done():
            return
        self._notifying.cancel()
        await asyncio.wait((self._notifying,))
        with suppress(PerdureError, TimeoutError):
            async with asyncio.timeout(LAST):
                await self._store.aperform(notify, frozenset([ENDED]))

    def _log(
        self, level: int, attempt: Attempt, name: EventName, seconds: float, change: Change | None
    ) -> None:
        job, failure = attempt.job, attempt.outcome
        again = change is not None and change.state == "ready"
        when = f", due in {change.delay / SECOND:.3f} s, after it ran for" if change and again else " after"
        cools = change.queue_cools if change is not None else None
        why = f": {_line(failure.message)}" if isinstance(failure, Failed) else ""
        why = why if cools is None else f"; queue {job.queue} cools for {cools / SECOND:.3f} s"
        _log.log(
            level,
            "Job %s of %s %s%s %.3f s (attempt %d)%s",
            job.id,
            job.task,
            name,
            when,
            seconds,
            job.attempt,
            why,
            extra={
                "job": job.id,
                "task": job.task,
                "queue": job.queue,
                "run": job.run,
                "attempt": job.attempt,
                "outcome": name,
                "seconds": round(seconds, 6),
            },
        )

    def _notify(self) -> None:
        self._again = True
        if self._notifying is None or self._notifying.done():
            self._notifying = asyncio.create_task(self._notify_until_quiet())

    async def _notify_until_quiet(self) -> None:
        while self._again:
            self._again = False
            with suppress(PerdureError):  # callers that wait also poll
                await self._store.aperform(notify, frozenset([ENDED]))
            await asyncio.sleep(PAUSE)


def log_start(name: str, address: str, *, options: WorkerOptions, slots: Slots) -> None:
    """Log the first line of a worker: its name, database, queues and tasks."""
    extra: dict[str, object] = {
        "worker": name,
        # This is not an import, because importing a name from the package imports the app, which is a higher layer.
        "version": vars(sys.modules["perdure"])["__version__"],
        "database": address,
        "queues": options.queues if options.queues is None else list(options.queues),
        "tasks": sorted([*slots.tasks, *slots.process_tasks]),
        "concurrency": options.concurrency,
        "processes": _processes(options) if slots.process_tasks else 0,
        "lease": options.lease / SECOND,
    }
    _log.info(
        "Worker %s of perdure %s on %s; queues: %s; tasks (%d): %s; at a time: %d on the loop or in threads, "
        "%d in processes; lease %g s",
        name,
        extra["version"],
        address,
        _queues(options.queues),
        len(slots.tasks) + len(slots.process_tasks),
        _some([*slots.tasks, *slots.process_tasks]),
        options.concurrency,
        extra["processes"],
        extra["lease"],
        extra=extra,
    )


def _line(message: str) -> str:
    """The first line of a message, in characters that every log stream can encode.

    A stream that cannot encode a character would drop the whole line.
    """
    return storable_text(message[:REASON].partition(NEWLINE)[0], REASON)


def _processes(options: WorkerOptions) -> int:
    return (os.cpu_count() or 1) if options.processes is None else options.processes


def _queues(queues: Queues) -> str:
    if queues is None:
        return "all"
    if isinstance(queues, Mapping):
        return ", ".join(f"{name}={weight}" for name, weight in queues.items())
    return ", ".join(queues)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(sorted(names)[:SHOWN]) + more
