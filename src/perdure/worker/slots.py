"""The slots in which a worker's jobs run, and how many slots are free."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import Any

from perdure.model.job import Claimed
from perdure.model.suspect import is_suspect
from perdure.worker.attempt import Attempt, Runner
from perdure.worker.handler import Handler
from perdure.worker.options import WorkerOptions
from perdure.worker.process.pool import ProcessRunner
from perdure.worker.process.protocol import Load
from perdure.worker.runners import LoopRunner, ThreadRunner
from perdure.worker.steps import Steps

MOST_KEPT = 64 << 20
"""The most bytes of outcomes that are kept without a slot until the database stores them.

Beyond that, attempts keep their slots, so a worker whose outcomes are all refused stops claiming in the end.
"""

KEPT_SIZE = 8 << 10
"""Approximate bytes of an attempt, besides its arguments and its outcome."""


class Slots:
    """The event loop and threads, which share ``concurrency`` slots, and processes, which have their own slots."""

    def __init__(
        self,
        options: WorkerOptions,
        handlers: Mapping[str, Handler],
        program: Load | None,
        steps: Steps,
        freed: Callable[[], None],
    ) -> None:
        processes = (os.cpu_count() or 1) if options.processes is None else options.processes
        self.total = options.concurrency
        self._steps = steps
        self._on_loop = LoopRunner()
        self._threads = ThreadRunner(options.concurrency, freed)
        self._processes = ProcessRunner(processes, program, freed=freed, in_place=self._start_in_place)
        self._here = self._there = 0
        self._freed_early: dict[Attempt, int] = {}
        """Attempts whose slots were freed before their outcome was recorded, and their sizes."""
        self._kept_bytes = 0
        in_process = {name for name, handler in handlers.items() if handler.run_in == "process"}
        self.tasks = sorted(handlers.keys() - in_process)
        """The tasks that run on the loop or in threads."""
        self.process_tasks = sorted(in_process) if self._processes.slots else []

    @property
    def all_tasks(self) -> list[str]:
        return sorted([*self.tasks, *self.process_tasks])

    @property
    def free(self) -> int:
        return self.total - self._here - self._threads.lost

    @property
    def free_processes(self) -> int:
        return self._processes.free - self._there

    @property
    def all_lost(self) -> bool:
        """Whether every thread is taken by a handler that does not end."""
        return self._threads.lost >= self.total

    async def check(self, stop: asyncio.Event) -> None:
        """Raise InvalidConfig if a child process does not find the tasks that run in processes.

        Return early if the worker is stopped.
        """
        if self.process_tasks:
            await self._processes.check(stop)

    def runner_of(self, job: Claimed, handler: Handler) -> Runner:
        """The runner of a job. A suspect, which may have ended its workers, runs alone in a process if possible."""
        alone = handler.run_in == "process" or (
            is_suspect(job.crashes, job.interruptions) and self._processes.ready
        )
        return self._steps.before(job, handler, self._processes if alone else self._in_place(handler))

    def attempt_of(self, task: asyncio.Task[Any] | None) -> Attempt | None:
        """The attempt for which this asyncio task runs, if it is known. Called from any thread."""
        return self._on_loop.attempt_of(task)

    def note_returned(self) -> None:
        """Note how attempts in processes ended while the loop was blocked. Threads note this themselves."""
        self._processes.note_returned()

    def take(self, attempt: Attempt) -> None:
        """Take a slot. ``leave`` frees it when the outcome is recorded."""
        if attempt.handler.run_in == "process":
            self._there += 1
        else:
            self._here += 1

    def free_early(self, attempt: Attempt) -> None:
        """Free the slot of an attempt whose outcome cannot be recorded yet.

        Do nothing if ``MOST_KEPT`` would be exceeded.
        """
        size = KEPT_SIZE + attempt.size
        if attempt not in self._freed_early and self._kept_bytes + size <= MOST_KEPT:
            self.leave(attempt)
            self._freed_early[attempt] = size
            self._kept_bytes += size

    def leave(self, attempt: Attempt) -> None:
        if attempt in self._freed_early:
            self._kept_bytes -= self._freed_early.pop(attempt)
            return
        if attempt.handler.run_in == "process":
            self._there -= 1
        else:
            self._here -= 1
        self._steps.held.release(attempt)

    async def close(self) -> None:
        self._threads.close()
        await self._processes.close()

    def _in_place(self, handler: Handler) -> Runner:
        return self._on_loop if handler.run_in == "async" else self._threads

    def _start_in_place(self, attempt: Attempt) -> None:
        attempt.runner = self._in_place(attempt.handler)
        attempt.runner.start(attempt)
