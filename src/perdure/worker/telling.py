"""What an attempt came to, told to the log, to those who subscribed and to those who wait for the job."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from time import monotonic

from perdure.errors import PerdureError
from perdure.events import EventName
from perdure.model.lifecycle import Canceled, Change, Continued, Failed, Outcome, Released, Snoozed, Succeeded
from perdure.ops.ring import ring
from perdure.ops.topics import ENDED
from perdure.store.store import Store
from perdure.worker.attempt import Attempt
from perdure.worker.hooks import Hooks

PAUSE = 0.02
"""Seconds between two bells for those who wait for some job: one serves all that ended meanwhile."""

LAST = 1.0
"""Seconds for the last bell of a worker that stops."""

REASON, NEWLINE = 200, "\n"
"""How much of a failure's message a line of the log tells: the first line, and not more letters than this."""

_log = logging.getLogger("perdure.worker")


class Teller:
    """Belongs to the event loop's thread."""

    def __init__(self, store: Store, hooks: Hooks) -> None:
        self._store = store
        self._hooks = hooks
        self._ringing: asyncio.Task[None] | None = None
        self._again = False

    def began(self, attempt: Attempt) -> None:
        self._hooks.attempt("started", attempt)

    def ended(self, attempt: Attempt, change: Change | None) -> None:
        outcome = attempt.outcome
        assert outcome is not None
        name = _name(outcome, change)
        seconds = monotonic() - attempt.started
        if _log.isEnabledFor(logging.INFO):
            self._log(attempt, name, seconds)
        failure = outcome if isinstance(outcome, Failed) else None
        self._hooks.attempt(
            name,
            attempt,
            seconds=seconds,
            kind=failure.kind if failure else None,
            code=change.error_code if change else None,
            message=change.error_message if change else None,
        )
        if name in ("succeeded", "failed", "canceled"):
            self._ring()

    def lost(self, attempt: Attempt) -> None:
        _log.warning(
            "Job %s of %s was taken away from this worker; nothing of this attempt is recorded",
            attempt.job.id,
            attempt.job.task,
            extra={"job": attempt.job.id, "task": attempt.job.task, "outcome": "lease_lost"},
        )
        self._hooks.attempt("lease_lost", attempt)

    async def close(self) -> None:
        """Ring for the last ones, without the pause before it."""
        if self._ringing is None or self._ringing.done():
            return
        self._ringing.cancel()
        await asyncio.wait((self._ringing,))
        with suppress(PerdureError, TimeoutError):
            async with asyncio.timeout(LAST):
                await self._store.aperform(ring, frozenset([ENDED]))

    def _log(self, attempt: Attempt, name: EventName, seconds: float) -> None:
        job, failure = attempt.job, attempt.outcome
        why = f": {failure.message[:REASON].partition(NEWLINE)[0]}" if isinstance(failure, Failed) else ""
        _log.info(
            "Job %s of %s %s after %.3f s (attempt %d)%s",
            job.id,
            job.task,
            name,
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

    def _ring(self) -> None:
        self._again = True
        if self._ringing is None or self._ringing.done():
            self._ringing = asyncio.create_task(self._ring_for_a_while())

    async def _ring_for_a_while(self) -> None:
        while self._again:
            self._again = False
            with suppress(PerdureError):  # whoever waits also looks by itself
                await self._store.aperform(ring, frozenset([ENDED]))
            await asyncio.sleep(PAUSE)


def _name(outcome: Outcome, change: Change | None) -> EventName:
    if change is None or change.state == "succeeded":
        # Without a change it was a plain success, or an outcome that was recorded before.
        return "succeeded" if isinstance(outcome, Succeeded) else _name_alone(outcome)
    if change.state in ("failed", "canceled"):
        return "failed" if change.state == "failed" else "canceled"
    return _name_alone(outcome)


def _name_alone(outcome: Outcome) -> EventName:
    match outcome:
        case Succeeded():
            return "succeeded"
        case Failed(kind="interrupted") | Released():
            return "given_back"
        case Failed():
            return "retried"
        case Snoozed():
            return "snoozed"
        case Continued():
            return "continued"
        case Canceled():
            return "canceled"
        case _:
            return "throttled"
