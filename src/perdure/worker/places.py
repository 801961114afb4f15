"""Where a worker's jobs run, and how many more could."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping

from perdure.model.job import Claimed
from perdure.model.lifecycle import SUSPECT_AFTER
from perdure.worker.attempt import Attempt, Runner
from perdure.worker.handler import Handler
from perdure.worker.options import WorkerOptions
from perdure.worker.processes import ProcessRunner
from perdure.worker.runners import LoopRunner, ThreadRunner
from perdure.worker.steps import Steps
from perdure.worker.wire import Load


class Places:
    """The event loop and threads, which share ``concurrency`` slots, and processes, which have their own."""

    def __init__(
        self,
        options: WorkerOptions,
        handlers: Mapping[str, Handler],
        program: Load | None,
        steps: Steps,
        freed: Callable[[], None],
    ) -> None:
        processes = (os.cpu_count() or 1) if options.processes is None else options.processes
        self.slots = options.concurrency
        self._steps = steps
        self._on_loop = LoopRunner()
        self._threads = ThreadRunner(options.concurrency, freed)
        self._processes = ProcessRunner(processes, program, freed=freed, in_place=self._start_in_place)
        self._here = self._there = 0
        in_process = {name for name, handler in handlers.items() if handler.run_in == "process"}
        self.tasks = sorted(handlers.keys() - in_process)
        """Those that run on the loop or in threads."""
        self.process_tasks = sorted(in_process) if self._processes.slots else []

    @property
    def free(self) -> int:
        return self.slots - self._here - self._threads.lost

    @property
    def free_processes(self) -> int:
        return self._processes.free - self._there

    @property
    def all_lost(self) -> bool:
        """Whether every thread is taken by a handler that does not end."""
        return self._threads.lost >= self.slots

    async def check(self, stop: asyncio.Event) -> None:
        """Raise InvalidConfig if there are tasks for processes and a new process does not find them.

        It returns early if the worker is to stop.
        """
        if self.process_tasks:
            await self._processes.check(stop)

    def of(self, job: Claimed, handler: Handler) -> Runner:
        """A job that was there when its worker died, more than once, runs where it can hurt only itself."""
        alone = handler.run_in == "process" or (job.crashes >= SUSPECT_AFTER and self._processes.ready)
        return self._steps.before(job, handler, self._processes if alone else self._in_place(handler))

    def take(self, attempt: Attempt) -> None:
        """Count it until it is left, which is when its outcome is recorded."""
        if attempt.handler.run_in == "process":
            self._there += 1
        else:
            self._here += 1

    def leave(self, attempt: Attempt) -> None:
        if attempt.handler.run_in == "process":
            self._there -= 1
        else:
            self._here -= 1

    async def close(self) -> None:
        self._threads.close()
        await self._processes.close()

    def _in_place(self, handler: Handler) -> Runner:
        return self._on_loop if handler.run_in == "async" else self._threads

    def _start_in_place(self, attempt: Attempt) -> None:
        attempt.runner = self._in_place(attempt.handler)
        attempt.runner.start(attempt)
