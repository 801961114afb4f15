"""What a running job sees of itself."""

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
    """Passed to a handler that has a parameter with the default ``CONTEXT``.

    A plain call of a task gets one of its own, outside any job. What it says or saves goes nowhere, for there is no
    row to tell and no next attempt. What somebody would count on after the call is refused: jobs, and a transaction.
    Bad values are refused as in a job.
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
        """The context of the job that runs here; one of its own outside any."""
        return current_context.get(None) or Context()

    @property
    def checkpoint(self) -> Any:
        """What the last attempt saved."""
        return None

    @property
    def deadline(self) -> datetime | None:
        """When this attempt times out."""
        return None

    @property
    def scheduled_for(self) -> datetime | None:
        """The instant of its schedule that this job stands for."""
        return None

    @property
    def workflow_id(self) -> str | None:
        """The id of the workflow whose step this job is."""
        return None

    @property
    def step_key(self) -> str | None:
        """The key of the step that this job is."""
        return None

    @property
    def config(self) -> Mapping[str, Any]:
        """What operators have set for its task, as of the start of the attempt. To be read only."""
        return self._config

    @property
    def meta(self) -> Mapping[str, Any]:
        """What the enqueuer attached."""
        return {}

    @property
    def results(self) -> Mapping[str, Any]:
        """What the direct parents of a step returned, by their keys."""
        return {}

    async def aresults(self) -> AsyncIterator[tuple[str, Any]]:
        """Key and result of each direct parent of a step, for async code: however large they are together."""
        for item in self.results.items():
            yield item

    def result_of(self, key: str) -> Any:
        """What any step before this one returned."""
        raise InvalidOption(f"A plain call is no step and has none before it: {RUN_AS_A_JOB}")

    async def aresult_of(self, key: str) -> Any:
        """The same for async code."""
        return self.result_of(key)

    def append(self, steps: Any, *, at_once: bool = False) -> list[str]:
        """Add steps to the workflow with the success of this attempt; ``at_once`` writes them now."""
        raise InvalidOption(f"A plain call is no step of a workflow: {RUN_AS_A_JOB}")

    async def aappend(self, steps: Any, *, at_once: bool = False) -> list[str]:
        """The same for async code."""
        return self.append(steps, at_once=at_once)

    def check(self) -> None:
        """Go on, or end here if the handler was asked to stop: as is right for whatever it was asked for."""
        if self.cancel_requested:
            raise Stopped

    def progress(self, done: int | None = None, total: int | None = None, message: str | None = None) -> None:
        """Say how far the job is; what is left out stays as it was."""
        for name, number in (("done", done), ("total", total)):
            if number is not None and (type(number) is not int or number < 0):
                raise InvalidOption(f"{name} must be a whole number, 0 or more.")
        if done is not None and total is not None and done > total:
            raise InvalidOption("done must not be more than total.")

    def stage(self, name: str) -> None:
        """Say what the job is about to do."""

    def log(self, message: str, *, level: str = "info") -> None:
        """Leave a line with the job."""

    def save(self, checkpoint: object) -> None:
        """Keep this for the next attempt: durable when it returns."""
        encode_plain({"checkpoint": checkpoint})

    async def asave(self, checkpoint: object) -> None:
        """The same for async code."""
        self.save(checkpoint)

    def enqueue(self, *requests: Any, at_once: bool = False) -> list[str]:
        """Enqueue jobs with the success of this attempt; ``at_once`` writes them now."""
        raise InvalidOption(f"A plain call has no success to enqueue jobs with: {RUN_AS_A_JOB}")

    async def aenqueue(self, *requests: Any, at_once: bool = False) -> list[str]:
        """The same for async code."""
        return self.enqueue(*requests, at_once=at_once)

    def succeed(self, result: object = None, *, conn: object) -> None:
        """Record success as the last statements of your own transaction, which you then commit."""

    async def asucceed(self, result: object = None, *, conn: object) -> None:
        """The same for async code."""

    def transaction(self) -> Any:
        """``with`` or ``async with``: a connection, in a transaction that ends with the job's success."""
        raise InvalidOption(f"A plain call has no success to end a transaction with: {RUN_AS_A_JOB}")


current_context: ContextVar[Context] = ContextVar("perdure_context")

CONTEXT = Context()
"""The default of a context parameter: it lets callers and type checkers leave it out."""
