"""Runs handlers in child processes: one child for each busy slot. A child is kept for the next job."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Literal

from perdure.errors import InvalidConfig
from perdure.model.job import SECOND
from perdure.model.lifecycle import Released
from perdure.model.suspect import is_suspect
from perdure.worker.attempt import Attempt
from perdure.worker.process.protocol import Load
from perdure.worker.process.slot import GRACE, Slot

IDLE = 60.0
"""Seconds after which a child without a job is let go."""
PAUSE = 5.0
"""Seconds to wait before the next try if a process could not be started."""

_log = logging.getLogger("perdure.worker")


class ProcessRunner:
    """Runs at most ``slots`` jobs at a time in child processes. A child that dies does not affect other children.

    ``freed`` is called when jobs can be started again after a pause. ``in_place`` is called with a suspect for which no
    process can be started.
    """

    def __init__(
        self,
        slots: int,
        load: Load | None,
        *,
        freed: Callable[[], None] = lambda: None,
        in_place: Callable[[Attempt], None] | None = None,
    ) -> None:
        self.slots = slots if load is not None else 0
        self._load = load
        self._freed = freed
        self._in_place = in_place
        self._loop = asyncio.get_running_loop()
        self._busy: dict[Attempt, Slot] = {}
        self._idle: list[Slot] = []
        self._all: set[Slot] = set()
        self._waiting: deque[Attempt] = deque()
        self._first: asyncio.Future[str | None] | None = None
        self._none_left = asyncio.Event()
        self._paused = False
        self._closed = False

    @property
    def ready(self) -> bool:
        """Whether processes can be started now."""
        return self.slots > 0 and not self._paused

    @property
    def free(self) -> int:
        """The number of slots, busy or not, for tasks that always run in processes.

        Suspects of other tasks take the remaining slots.
        """
        if self._paused:
            return 0
        guests = sum(attempt.handler.run_in != "process" for attempt in (*self._busy, *self._waiting))
        return self.slots - guests

    @property
    def pids(self) -> list[int]:
        return [slot.pid for slot in self._all]

    async def check(self, stop: asyncio.Event) -> None:
        """Start the first child. Raise InvalidConfig if that child cannot load the app."""
        stopped = asyncio.create_task(stop.wait())
        try:
            reason = await self._load_first(stopped)
        except OSError as error:
            reason = f"no process can be started: {error.strerror}"
        finally:
            self._first = None
            stopped.cancel()
        if reason is not None:
            await self.close()
            target = self._load.target if self._load else ""
            raise InvalidConfig(f"Tasks run in processes, and a new process cannot load {target}: {reason}.")

    async def _load_first(self, stopped: asyncio.Task[Literal[True]]) -> str | None:
        """Start a child. If it cannot load the app, return the reason."""
        self._first = first = asyncio.Future[str | None](loop=self._loop)
        slot = self._open()
        try:
            await asyncio.wait((first, stopped), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            slot.kill()
            raise
        reason = first.result() if first.done() else None
        if reason is None:
            self._keep_idle(slot)
        return reason

    def start(self, attempt: Attempt) -> None:
        if len(self._busy) < self.slots:
            self._begin(attempt)
        else:
            self._waiting.append(attempt)

    def stop(self, attempt: Attempt) -> None:
        if (slot := self._busy.get(attempt)) is not None:
            slot.stop()
        elif attempt in self._waiting:
            self._waiting.remove(attempt)
            attempt.end(None, monotonic())

    def give_up(self, attempt: Attempt) -> None:
        """Kill the attempt's child, which has not ended in time. Free the slot without waiting for the child's end."""
        if (slot := self._busy.pop(attempt, None)) is not None:
            slot.kill()
        attempt.give_up()
        self._serve_waiting()

    def note_returned(self) -> None:
        """See ``Slot.note_returned``."""
        for slot in list(self._busy.values()):
            slot.note_returned()

    async def close(self) -> None:
        """End every child. Children that still run a job are killed."""
        self._closed = True
        for slot in list(self._all):
            if slot.attempt is None and slot.loaded:
                slot.let_go()
            else:
                slot.kill()
        try:
            async with asyncio.timeout(2 * GRACE):
                while self._all:
                    self._none_left.clear()
                    await self._none_left.wait()
        except TimeoutError:
            _log.warning("%d processes of this worker do not end", len(self._all))

    # Called by slots

    def fit(self) -> None:
        self._answer(None)

    def unfit(self, attempt: Attempt | None, reason: str) -> None:
        if self._answer(reason) or self._closed:
            return
        self._pause(f"A new process cannot load the app: {reason}")
        if attempt is not None:
            self._busy.pop(attempt, None)
            self._send_back(attempt)

    def done(self, slot: Slot, attempt: Attempt) -> None:
        self._busy.pop(attempt, None)
        if slot.worn_out or self._closed:
            slot.let_go()
        else:
            self._keep_idle(slot)
        if self._waiting:
            self._loop.call_soon(self._serve_waiting)

    def gone(self, slot: Slot) -> None:
        self._all.discard(slot)
        if slot in self._idle:
            self._idle.remove(slot)
        self._none_left.set()

    def _begin(self, attempt: Attempt) -> None:
        alone = is_suspect(attempt.job.crashes, attempt.job.interruptions)
        while self._idle and not alone:
            slot = self._idle.pop()
            if slot.give(attempt):
                self._busy[attempt] = slot
                return
            slot.attempt = None  # the child was about to end, or has died
        try:
            slot = self._busy[attempt] = self._open(alone=alone)
        except OSError as error:
            self._pause(f"No process can be started: {error.strerror}")
            self._send_back(attempt)
        else:
            slot.give(attempt)

    def _open(self, *, alone: bool = False) -> Slot:
        assert self._load is not None, "without an app to load there are no slots"
        slot = Slot(self._load, self, alone=alone)
        self._all.add(slot)
        return slot

    def _keep_idle(self, slot: Slot) -> None:
        """Keep a child for the next job. The child kept last is used first, so that superfluous children time out."""
        self._idle.append(slot)
        slot.retire_after(IDLE)

    def _serve_waiting(self) -> None:
        while self._waiting and len(self._busy) < self.slots and not self._closed:
            self._begin(self._waiting.popleft())

    def _send_back(self, attempt: Attempt) -> None:
        """Handle an attempt for which no process can be started.

        A suspect whose task needs no process runs in the worker itself, unless it was asked to stop. Any other job is
        released.
        """
        if self._in_place is not None and attempt.handler.run_in != "process" and attempt.stop_reason is None:
            self._in_place(attempt)
        else:
            attempt.end(Released(attempt.lease, int(PAUSE * SECOND)), monotonic())

    def _answer(self, reason: str | None) -> bool:
        """Answer ``check``, if it waits for the first child. Return whether it waits."""
        if self._first is None or self._first.done():
            return False
        self._first.set_result(reason)
        return True

    def _pause(self, reason: str) -> None:
        _log.error("%s. Jobs that need one wait for %.0f s", reason, PAUSE)
        if not self._paused:
            self._paused = True
            self._loop.call_later(PAUSE, self._go_on)

    def _go_on(self) -> None:
        self._paused = False
        self._freed()
