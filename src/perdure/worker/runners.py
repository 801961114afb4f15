"""Runs handlers inside the worker's own process: on the event loop, or in threads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from time import monotonic
from typing import Any

from perdure.internal.threads import DaemonThreads
from perdure.model.job import SECOND
from perdure.model.lifecycle import Outcome, Released
from perdure.request.context import current_context
from perdure.worker.attempt import Attempt
from perdure.worker.outcome import raised, returned

NO_THREAD = 5 * SECOND
"""How long a job is put off if no thread could be started for it."""

CHECK_INTERVAL = 1.0
"""Seconds between two checks for asyncio tasks that were cancelled before they began.

A callback on each asyncio task would make a no-op job 10 % slower.
"""

_log = logging.getLogger("perdure.worker")


class LoopRunner:
    """Runs async handlers, each as an asyncio task."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[Attempt, asyncio.Task[None]] = {}
        self._check: asyncio.TimerHandle | None = None

    def start(self, attempt: Attempt) -> None:
        attempt.begin()
        task = self._loop.create_task(self._run(attempt), name=attempt.handler.name)
        if not attempt.ended:  # an eager task may have ended the attempt already
            self._tasks[attempt] = task
            self._check = self._check or self._loop.call_later(CHECK_INTERVAL, self._check_tasks)

    def stop(self, attempt: Attempt) -> None:
        if task := self._tasks.get(attempt):
            # A task that is cancelled before it begins never runs the code that ends the attempt.
            task.add_done_callback(lambda _: self._end(attempt, None))
            task.cancel()

    def give_up(self, attempt: Attempt) -> None:
        """End the attempt. Its asyncio task continues without a slot."""
        attempt.give_up()

    def attempt_of(self, task: asyncio.Task[Any] | None) -> Attempt | None:
        """The attempt whose handler runs as this asyncio task or has created it. Called from any thread."""
        # Python 3.11 does not expose a task's context.
        context = getattr(task, "get_context", dict[Any, Any])()
        running = context.get(current_context)
        for attempt, own in list(self._tasks.items()):
            if own is task or attempt.context is running:
                return attempt
        return None

    async def _run(self, attempt: Attempt) -> None:
        current_context.set(attempt.context)
        handler, job = attempt.handler, attempt.job
        outcome: Outcome | None
        value = None  # the value stays None if a middleware swallows an error
        try:
            with handler.around(attempt.context):
                value = await handler.call(job.payload, attempt.context)
        except asyncio.CancelledError:
            self._end(attempt, None)
            raise
        except BaseException as error:
            # This includes SystemExit: a handler may end itself, but not its worker.
            outcome = raised(handler, job, error)
        else:
            outcome = returned(handler, attempt.lease, value)
        # End the attempt here: a callback of the task would cost another iteration of the event loop.
        self._end(attempt, outcome)

    def _check_tasks(self) -> None:
        """End attempts whose task was cancelled before it began."""
        for attempt, task in list(self._tasks.items()):
            if task.done():
                self._end(attempt, None)
        self._check = self._loop.call_later(CHECK_INTERVAL, self._check_tasks) if self._tasks else None

    def _end(self, attempt: Attempt, outcome: Outcome | None) -> None:
        self._tasks.pop(attempt, None)
        attempt.end(outcome, monotonic())


class ThreadRunner:
    """Runs synchronous handlers in daemon threads. A handler that never ends does not delay the program's end."""

    def __init__(self, slots: int, freed: Callable[[], None]) -> None:
        self._threads = DaemonThreads("perdure-handler", limit=slots)
        self._loop = asyncio.get_running_loop()
        self._freed = freed
        self._given_up: set[Attempt] = set()

    @property
    def lost(self) -> int:
        """How many threads are still busy with handlers that were given up."""
        return len(self._given_up)

    def start(self, attempt: Attempt) -> None:
        attempt.begin()
        context = copy_context()
        try:
            self._threads.submit(lambda: context.run(self._run, attempt))
        except RuntimeError:
            _log.warning("No thread can be started for job %s: it is given back", attempt.job.id)
            attempt.end(Released(attempt.lease, NO_THREAD), monotonic())

    def stop(self, attempt: Attempt) -> None:
        """Do nothing: a thread cannot be stopped. Its handler can call ``ctx.check()``."""

    def give_up(self, attempt: Attempt) -> None:
        """End the attempt. Its handler keeps the slot until the handler returns."""
        self._given_up.add(attempt)
        attempt.give_up()

    def close(self) -> None:
        self._threads.stop(wait=False)

    def _run(self, attempt: Attempt) -> None:
        current_context.set(attempt.context)
        handler, job = attempt.handler, attempt.job
        outcome: Outcome | None
        value = None
        try:
            with handler.around(attempt.context):
                value = handler.call(job.payload, attempt.context)
        except BaseException as error:
            outcome = raised(handler, job, error)
        else:
            outcome = returned(handler, attempt.lease, value)
        now = monotonic()
        attempt.returned = outcome, now
        with suppress(RuntimeError):  # the loop was closed, so nobody can record the outcome
            self._loop.call_soon_threadsafe(self._ended, attempt, outcome, now)

    def _ended(self, attempt: Attempt, outcome: Outcome | None, now: float) -> None:
        if attempt in self._given_up:
            self._given_up.discard(attempt)
            self._freed()
        attempt.end(outcome, now)
