"""The options of a worker, and its exit codes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from perdure.model.job import SECOND, Span
from perdure.worker.operations import Queues

STOP_GRACE = 5.0
"""Seconds that handlers get to end once the worker asks them to stop."""


class Exit(IntEnum):
    """How a worker ended, as the exit code of its process."""

    DONE = 0
    CRASHED = 1
    """The worker stopped because of an error, for example because one of its own loops died."""
    GAVE_BACK = 10
    """The time to drain was over, and jobs were given back unfinished."""
    SLOTS_LOST = 11
    """Every thread was taken by a handler that would not end."""
    LOOP_BLOCKED = 12
    """A handler blocked the event loop past its timeout and grace, or other code blocked the loop for long."""


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    queues: Queues = None
    concurrency: int = 20
    processes: int | None = None
    burst: bool = False
    drain: float = 30.0
    poll: float = 1.0
    lease: Span = 30 * SECOND
    name: str | None = None
    owns_process: bool = False
    """Whether the worker runs alone in its process and may end the process."""
