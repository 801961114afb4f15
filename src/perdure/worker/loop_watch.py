"""Watches the event loop from a separate thread, and gives up a handler that blocks the loop past its timeout."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple, Protocol

from perdure.model.lifecycle import TRACE, Failed
from perdure.worker.attempt import Attempt
from perdure.worker.bounded_log import BoundedLog
from perdure.worker.options import Exit

TICK = 1.0
"""The most seconds between two checks of the event loop."""

LATE = 1.5
"""A check is late if it comes this many ticks after the last check.

The process itself was then held up, so the check proves nothing.
"""

LEAST_HELD = 2
"""Ticks for which a handler must have blocked the loop before it is given up, however short its grace is."""

UNSEEN_GRACE = 5.0
"""Code that belongs to no attempt may block the loop for at least this many seconds before the loop is given up."""

LOOKS_PER_LEASE = 3
"""How many intervals of the watch make up the lease of a worker."""

FRAME = '  File "'
"""The beginning of each frame in a formatted stack."""

WORKER = str(Path(__file__).parent)
"""The directory of the worker's own code."""

BLOCKED = "job.blocked_loop"

WAKE = signal.SIGURG
"""The signal to send to a main thread that does not answer, so that Python handles signals that have arrived.

A signal does not interrupt a blocking call if another thread received it, or if it arrived just before the call. The
default action of SIGURG is to do nothing.
"""

_log = BoundedLog(logging.getLogger("perdure.worker"))


class Watched(Protocol):
    """The part of the worker that the watch needs. All methods are called from the watch's thread."""

    @property
    def attempts(self) -> Sequence[Attempt]: ...

    @property
    def drained_by(self) -> float | None:
        """When to end a worker that was told to stop and whose loop does not answer. None means never."""
        ...

    def attempt_of(self, task: asyncio.Task[Any] | None) -> Attempt | None:
        """The attempt for which this asyncio task runs, if it is known."""
        ...

    def give_up_loop(self, verdict: Verdict, stack: str) -> None:
        """Give up the loop, which is at ``stack`` and does not answer. Called at each check until the loop answers."""
        ...


class Verdict(NamedTuple):
    """Why the loop is given up, and with which exit code the worker ends."""

    status: Exit
    message: str
    blocker: Attempt | None = None
    """The attempt whose handler blocks the loop."""

    def charge(self, stack: str) -> Failed | None:
        """The outcome of the attempt that blocks the loop, with the stack of its handler."""
        if self.blocker is None:
            return None
        message = "It blocked the event loop past its timeout and grace, so that its worker gave it up."
        return Failed(self.blocker.lease, "panic", BLOCKED, message, _from_handler(stack)[-TRACE:])


class LoopWatch:
    """Checks once per tick whether the loop answers, and adds up the time for which it did not.

    The time before a late check does not count, and the time for which a task has blocked the loop starts again from
    zero. So no handler is blamed for time in which the machine was suspended or the process was stopped: the loop gets
    another tick to answer.
    """

    def __init__(self, worker: Watched, *, interval: float) -> None:
        """``interval``: seconds without an answer after which the log shows where the loop is."""
        self._worker = worker
        self._interval = interval
        self._tick = min(TICK, interval)
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._stopped = threading.Event()
        self._answered = True
        self._unanswered = 0.0
        self._warned = False
        self._holder: asyncio.Task[Any] | None = None
        self._held = 0.0
        self._thread = threading.Thread(target=self._run, name="perdure-loop-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        looked_at = monotonic()
        while not self._stopped.wait(self._tick):
            now = monotonic()
            try:
                self.look(now - looked_at, now)
            except Exception as error:
                _log.write(
                    logging.ERROR, "The watch of the event loop met an error it did not expect", error=error
                )
            looked_at = monotonic()  # so that the time which a check takes does not count

    def look(self, passed: float, now: float) -> None:
        """Check the loop once. ``passed``: seconds since the last check."""
        holder = asyncio.current_task(self._loop)
        if self._answered:
            self._unanswered, self._warned = 0.0, False
            self._holder, self._held = holder, 0.0
            self._answered = False
            self._in_loop(self._answer)
            return
        if self._loop_thread == threading.main_thread().ident:
            signal.pthread_kill(self._loop_thread, WAKE)
        if passed > LATE * self._tick:
            self._holder, self._held = holder, 0.0
            return
        # The loop answers between two runs of the same task. So if the same task still runs, and the loop has not
        # answered, then the task has not yielded since the last check.
        self._held = self._held + passed if holder is self._holder else 0.0
        self._holder = holder
        self._unanswered += passed
        verdict = self._judge(now)
        if verdict is not None and not self._answered:
            self._worker.give_up_loop(verdict, self._stack())
        if self._unanswered >= self._interval and not self._warned:
            self._warned = True
            _log.write(
                logging.WARNING,
                "The event loop has not answered for %.1f s; jobs keep their leases. It is here:\n%s",
                self._unanswered,
                self._stack(),
            )

    def _judge(self, now: float) -> Verdict | None:
        """Return why to give up the loop, or None.

        A loop that is only slow answers before a single asyncio task has blocked it for long.
        """
        drained_by = self._worker.drained_by
        if drained_by is not None and now > drained_by:
            return Verdict(Exit.GAVE_BACK, "The worker was told to stop, and its event loop does not answer.")
        overdue = [attempt for attempt in self._worker.attempts if attempt.overdue(now)]
        blocker, message = (
            self._worker.attempt_of(self._holder),
            "Code outside of the handlers blocks the event loop.",
        )
        if blocker is not None and blocker.ended:
            # The attempt was given up and its outcome is recorded, but its handler still runs. So the verdict names
            # no attempt.
            message = f"{_named(blocker)} was given up earlier, still runs and blocks the event loop."
            overdue.append(blocker)
            blocker = None
        if not overdue:
            return self._judge_leftovers() if blocker is None else None
        if blocker is None:
            grace = max(UNSEEN_GRACE, *(attempt.handler.timeout_grace for attempt in overdue))
            return Verdict(Exit.LOOP_BLOCKED, message) if self._held >= grace else None
        if blocker not in overdue or self._held < max(LEAST_HELD * self._tick, blocker.handler.timeout_grace):
            return None
        message = f"{_named(blocker)} blocks the event loop past its timeout and grace."
        return Verdict(Exit.LOOP_BLOCKED, message, blocker)

    def _judge_leftovers(self) -> Verdict | None:
        """Judge a loop that is blocked by code that belongs to no attempt, while no attempt is overdue.

        The loop is not given up while async handlers run. Otherwise it must answer within a lease.
        """
        if any(not attempt.ended and attempt.handler.run_in == "async" for attempt in self._worker.attempts):
            return None
        if self._held < max(LOOKS_PER_LEASE * self._interval, UNSEEN_GRACE):
            return None
        return Verdict(Exit.LOOP_BLOCKED, "Code that a handler left behind blocks the event loop.")

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._loop_thread)
        return "".join(traceback.format_stack(frame)) if frame else "(its thread is gone)"

    def _answer(self) -> None:
        self._answered = True

    def _in_loop(self, function: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            self._stopped.set()  # the loop was closed


def _from_handler(stack: str) -> str:
    """The frames of the handler's own code, below the frames of asyncio and of the worker."""
    frames = stack.split(FRAME)
    last = max((i for i, frame in enumerate(frames) if frame.startswith(WORKER)), default=-1)
    return FRAME + FRAME.join(frames[last + 1 :]) if 0 <= last < len(frames) - 1 else stack


def _named(attempt: Attempt) -> str:
    return f"Job {attempt.job.id} of {attempt.job.task}"
