"""The worker's side of one child process, and of the job that the child runs."""

from __future__ import annotations

import asyncio
import signal
from time import monotonic, time
from typing import Protocol, TypeAlias

import msgspec

from perdure.model.lifecycle import Failed, Outcome
from perdure.worker.attempt import Attempt
from perdure.worker.process.protocol import (
    Answer,
    Channel,
    Committing,
    Ended,
    Fault,
    FromChild,
    Load,
    Loaded,
    LoadFailed,
    Logged,
    Reported,
    RolledBack,
    Run,
    Save,
    Stop,
)
from perdure.worker.process.spawn import Spawned

CHILD = "perdure.worker.process.child"
LOADING = 60.0
"""Seconds that a child gets to load the app."""
GRACE = 2.0
"""Seconds between the request to stop and SIGKILL."""
MOST_JOBS = 1_000
MOST_GROWTH = 256 * 1024 * 1024
"""A child is replaced after ``MOST_JOBS`` jobs, or once it holds ``MOST_GROWTH`` bytes more than after its first job.

It is not replaced earlier: a new child costs 0.3 s and the app's imports, whereas a job in an existing child costs
0.2 ms.
"""


JobReport: TypeAlias = Reported | Logged | Save | Committing | RolledBack | Ended
"""Messages of a child about its job."""


class SlotOwner(Protocol):
    """The part of the pool that a slot needs."""

    def fit(self) -> None:
        """Called when a process has loaded the app."""
        ...

    def unfit(self, attempt: Attempt | None, reason: str) -> None:
        """Called when a process cannot load the app. The attempt that it was given, if any, has not begun."""
        ...

    def done(self, slot: Slot, attempt: Attempt) -> None:
        """Called when the slot's job has ended. Unless the slot is ``worn_out``, it can take another job."""
        ...

    def gone(self, slot: Slot) -> None:
        """Called when the process has ended, and with it the attempt that the process ran."""
        ...


class Slot:
    """One child process and its job. This is used in the event loop's thread."""

    def __init__(self, load: Load, pool: SlotOwner, *, alone: bool = False) -> None:
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._process = Spawned(CHILD, self._died)
        self._channel = Channel(self._process.socket, self._message)
        self._number = 0
        self._resident: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._saving: set[asyncio.Task[None]] = set()
        self._ending = False
        self.loaded = False
        self.attempt: Attempt | None = None
        self.worn_out = alone
        """Whether the child gets no further job. A child that was started for a suspect runs only that job."""
        self._channel.send(load)
        self._set_timer(self._loop.call_later(LOADING, self._too_slow))

    @property
    def pid(self) -> int:
        return self._process.pid

    def give(self, attempt: Attempt) -> bool:
        """Give the child a job. Return whether the child was still alive.

        A child that is still loading the app gets the job afterwards.
        """
        self._number += 1
        self.attempt = attempt
        return self._begin(attempt) if self.loaded else True

    def _begin(self, attempt: Attempt) -> bool:
        deadline = None if attempt.allowed is None else time() + attempt.allowed
        context = attempt.context
        run = Run(
            self._number,
            attempt.job,
            context.worker or "",
            deadline,
            context.step_results.parents,
            context.config_text,
        )
        if not self._channel.send(run):
            return False
        self._set_timer(None)
        attempt.begin()
        return True

    def retire_after(self, seconds: float) -> None:
        """Let the child go if it gets no job within this many seconds."""
        self._set_timer(self._loop.call_later(seconds, self.let_go))

    def let_go(self) -> None:
        """Let the child, which has no job, end by itself."""
        self.worn_out = self._ending = True
        self._channel.close()
        self._set_timer(self._loop.call_later(GRACE, self.kill))

    def stop(self) -> None:
        """Ask the handler to stop. The handler gets ``GRACE`` seconds to clean up."""
        self.worn_out = self._ending = True
        self._channel.send(Stop())
        self._set_timer(self._loop.call_later(GRACE, self.kill))

    def kill(self) -> None:
        self.worn_out = self._ending = True
        self._process.signal(signal.SIGKILL)

    def note_returned(self) -> None:
        """Note how the handler ended, if it ended while the loop was blocked. Called from any thread."""
        attempt = self.attempt
        if attempt is None:
            return
        for message in self._channel.read_rest():
            match message:
                case Ended(number=self._number):
                    attempt.returned = message.decoded(), monotonic()
                case Reported() | Logged() if message.number == self._number:
                    self._job_message(attempt, message)

    def _set_timer(self, timer: asyncio.TimerHandle | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = timer

    def _message(self, message: FromChild) -> None:
        match message:
            case Loaded():
                self._has_loaded()
            case LoadFailed(reason):
                self._refuse(reason)
            case Reported() | Logged() | Save() | Committing() | RolledBack() | Ended():
                # A thread that a handler left behind may still send messages about a job that has ended.
                if self.attempt is not None and not self.attempt.ended and message.number == self._number:
                    self._job_message(self.attempt, message)

    def _job_message(self, attempt: Attempt, message: JobReport) -> None:
        context = attempt.context
        match message:
            case Reported(report=report):
                if report.stage is not None:
                    context.stage(report.stage)
                else:
                    context.progress(report.done, report.total, report.message)
            case Logged(level=level, message=line):
                context.log(line, level=level)
            case Save():
                task = asyncio.create_task(self._save(attempt, message))
                self._saving.add(task)
                task.add_done_callback(self._saving.discard)
            case Committing(request=request, success=success):
                context.success = success
                self._channel.send(Answer(request, context.cancel_requested))
            case RolledBack():
                context.forget_success()
            case Ended():
                self._check_wear(message.resident)
                self._end(message.decoded())

    async def _save(self, attempt: Attempt, save: Save) -> None:
        context, fault = attempt.context, None
        try:
            await context.asave(msgspec.json.decode(save.checkpoint))
        except Exception as error:  # whatever the error is, the child waits for an answer
            fault = Fault.of(error)
        self._channel.send(Answer(save.request, context.cancel_requested, fault))

    def _check_wear(self, resident: int) -> None:
        if self._resident is None:
            self._resident = resident
        if self._number >= MOST_JOBS or resident > self._resident + MOST_GROWTH:
            self.worn_out = True

    def _end(self, outcome: Outcome | None) -> None:
        """Free the slot, and then end the attempt."""
        attempt, self.attempt = self.attempt, None
        if attempt is None:
            return
        if attempt.stop_reason is not None:
            # The handler was asked to stop, so end the processes that it started as well.
            self.kill()
        self._pool.done(self, attempt)
        attempt.end(outcome, monotonic())

    def _has_loaded(self) -> None:
        if self._ending:
            return  # the child was stopped a moment ago
        self.loaded = True
        self._set_timer(None)
        self._pool.fit()
        if self.attempt is not None:
            self._begin(self.attempt)

    def _too_slow(self) -> None:
        self._refuse(f"it took more than {LOADING:g} s")

    def _refuse(self, reason: str) -> None:
        self.kill()
        attempt, self.attempt = self.attempt, None
        self._pool.unfit(attempt, reason)

    def _died(self, code: int) -> None:
        self._channel.drain()
        self._channel.close()
        self.worn_out = True
        if not (self.loaded or self._ending):
            self._refuse(f"it {_how(code)}")
        elif (attempt := self.attempt) is not None:
            panic = Failed(attempt.lease, "panic", message=f"Its process {_how(code)}.")
            self._end(panic if attempt.stop_reason is None else None)
        self._set_timer(None)
        self._pool.gone(self)


def _how(code: int) -> str:
    if code >= 0:
        return f"ended by itself with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
