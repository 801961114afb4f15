"""The context: a running job's view of itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextvars import ContextVar
from datetime import datetime
from types import MappingProxyType
from typing import Any

from perdure.errors import InvalidOption
from perdure.model.codec import encode_plain
from perdure.request.signals import Stopped

NOTHING: Mapping[str, Any] = MappingProxyType({})

RUN_AS_A_JOB = "enqueue the task, in a test inside app.testing()."


class Context:
    """The object that a handler gets through a parameter with the default ``CONTEXT``.

    A direct call of a task as a function gets a context without a job. Its reports and checkpoints are discarded,
    because there is no row and no next attempt. ``enqueue``, ``append`` and ``transaction`` raise, because a caller
    would rely on their effects. Invalid values are refused as in a job.
    """

    __slots__ = ("_config", "attempt", "cancel_requested", "job_id", "run", "tenant", "worker")

    def __init__(
        self,
        *,
        job_id: str | None = None,
        run: int = 1,
        attempt: int = 1,
        tenant: str | None = None,
        worker: str | None = None,
        config: Mapping[str, Any] = NOTHING,
    ) -> None:
        self.job_id = job_id
        self.run = run
        self.attempt = attempt
        self.tenant = tenant
        self.worker = worker
        self.cancel_requested = False
        self._config = config

    @staticmethod
    def current() -> Context:
        """The context of the job that runs here; outside a job, a context without a job."""
        return current_context.get(None) or Context()

    @property
    def checkpoint(self) -> Any:
        """The checkpoint that an earlier attempt saved; None if no checkpoint was saved."""
        return None

    @property
    def deadline(self) -> datetime | None:
        """When this attempt times out."""
        return None

    @property
    def scheduled_for(self) -> datetime | None:
        """The time for which a schedule made this job."""
        return None

    @property
    def workflow_id(self) -> str | None:
        """The id of the workflow that this job is a step of."""
        return None

    @property
    def step_key(self) -> str | None:
        """This job's step key."""
        return None

    @property
    def config(self) -> Mapping[str, Any]:
        """The config that operators have set for this task, as of the start of the attempt. Do not modify it."""
        return self._config

    @property
    def meta(self) -> Mapping[str, Any]:
        """The values that were attached to the job when it was enqueued."""
        return {}

    @property
    def results(self) -> Mapping[str, Any]:
        """The results of the direct parents of this step that succeeded, by step key."""
        return {}

    async def aresults(self) -> AsyncIterator[tuple[str, Any]]:
        """Yield the key and the result of each direct parent that succeeded. Their total size is not limited."""
        for item in self.results.items():
            yield item

    def result_of(self, key: str) -> Any:
        """The result of an ancestor of this step."""
        raise InvalidOption(f"A plain call is not a step and has no earlier steps: {RUN_AS_A_JOB}")

    async def aresult_of(self, key: str) -> Any:
        """``result_of`` for async code."""
        return self.result_of(key)

    def append(self, steps: Any, *, at_once: bool = False) -> list[str]:
        """Add steps to the workflow when this attempt succeeds; ``at_once`` adds them now."""
        raise InvalidOption(f"A plain call is not a step of a workflow: {RUN_AS_A_JOB}")

    async def aappend(self, steps: Any, *, at_once: bool = False) -> list[str]:
        """``append`` for async code."""
        return self.append(steps, at_once=at_once)

    def check(self) -> None:
        """End the handler here if it was asked to stop: by a cancel, a timeout, a lost lease or a shutdown."""
        if self.cancel_requested:
            raise Stopped

    def progress(self, done: int | None = None, total: int | None = None, message: str | None = None) -> None:
        """Report how far the job is. Omitted values stay as they were."""
        for name, number in (("done", done), ("total", total)):
            if number is not None and (type(number) is not int or number < 0):
                raise InvalidOption(f"{name} must be a whole number, 0 or more.")
        if done is not None and total is not None and done > total:
            raise InvalidOption("done must not be more than total.")

    def stage(self, name: str) -> None:
        """Report what the job is about to do."""

    def log(self, message: str, *, level: str = "info") -> None:
        """Add a line to the job's log."""

    def save(self, checkpoint: object) -> None:
        """Save a checkpoint for the next attempt. It is durable when the call returns."""
        encode_plain({"checkpoint": checkpoint})

    async def asave(self, checkpoint: object) -> None:
        """``save`` for async code."""
        self.save(checkpoint)

    def enqueue(self, *requests: Any, at_once: bool = False) -> list[str]:
        """Enqueue jobs when this attempt succeeds; ``at_once`` enqueues them now."""
        raise InvalidOption(f"A plain call cannot enqueue jobs with its success: {RUN_AS_A_JOB}")

    async def aenqueue(self, *requests: Any, at_once: bool = False) -> list[str]:
        """``enqueue`` for async code."""
        return self.enqueue(*requests, at_once=at_once)

    def succeed(self, result: object = None, *, conn: object) -> None:
        """Record the job's success at the end of your own transaction. Then commit the transaction."""

    async def asucceed(self, result: object = None, *, conn: object) -> None:
        """``succeed`` for async code."""

    def transaction(self) -> Any:
        """A connection for ``with`` or ``async with``. The end of the block records the job's success and commits."""
        raise InvalidOption(f"A plain call cannot end a transaction with its success: {RUN_AS_A_JOB}")


current_context: ContextVar[Context] = ContextVar("perdure_context")

CONTEXT = Context()
"""The default value of a context parameter. It lets callers omit the argument, and type checkers accept that."""
