"""The context of a job that runs in a child. It sends reports to the worker, which writes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from itertools import count
from typing import Any

import msgspec

from perdure.model.codec import storable_text
from perdure.model.lifecycle import SHORT, TRACE, Report
from perdure.model.progress import MOST_PROGRESS
from perdure.plan.plan import Plan, in_thread, refuse_in_event_loop
from perdure.worker.context import JobContext, as_text
from perdure.worker.handler import Handler
from perdure.worker.operations import WorkerOperations
from perdure.worker.process.protocol import (
    Answer,
    Committing,
    FromChild,
    Logged,
    Reported,
    RolledBack,
    Run,
    Save,
)
from perdure.worker.save import encode_checkpoint


class PendingRequests:
    """Requests to the worker that wait for an answer. It may be used from any thread."""

    def __init__(self, send: Callable[[FromChild], None]) -> None:
        self.send = send
        self._numbers = count()
        self._waiting: dict[int, Future[Answer]] = {}

    def ask(self, request: Callable[[int], FromChild]) -> Future[Answer]:
        number, future = next(self._numbers), Future[Answer]()
        self._waiting[number] = future
        self.send(request(number))
        return future

    def answered(self, answer: Answer) -> None:
        future = self._waiting.pop(answer.request, None)
        if future is not None and future.set_running_or_notify_cancel():
            future.set_result(answer)


class ChildContext(JobContext):
    """The context of a job in a child. The child has its own operations, which open the database only when used."""

    __slots__ = ("_number", "_requests")

    def __init__(
        self,
        run: Run,
        handlers: Mapping[str, Handler],
        *,
        operations: WorkerOperations,
        requests: PendingRequests,
    ) -> None:
        super().__init__(run.job, handlers, worker=run.worker, operations=operations)
        if run.parents is not None:
            self.step_results.set_parents(run.parents)
        self.config_text = run.config
        self.deadline_at = run.deadline
        self._number = run.number
        self._requests = requests

    def log(self, message: str, *, level: str = "info") -> None:
        text = storable_text(self._redacted(message), TRACE)
        self._requests.send(Logged(self._number, storable_text(as_text(level), SHORT), text))

    def save(self, checkpoint: object) -> None:
        """Save a checkpoint for the next attempt. It is durable when this returns."""
        refuse_in_event_loop("save")
        self._check_answer(self._ask_to_save(checkpoint).result())

    async def asave(self, checkpoint: object) -> None:
        self._check_answer(await asyncio.wrap_future(self._ask_to_save(checkpoint)))

    def _ask_to_save(self, checkpoint: object) -> Future[Answer]:
        text = encode_checkpoint(checkpoint)
        return self._requests.ask(lambda request: Save(self._number, request, text))

    def _succeed(self, result: object = None, *, conn: object) -> Plan[None]:
        """Record success with the last statements of the caller's own transaction, which the caller commits."""
        yield from super()._succeed(result, conn=conn)
        # Once the success is committed, the lease is gone. A worker that does not know of the success would stop this
        # process.
        yield from in_thread(self._announce_success)

    def _announce_success(self) -> None:
        assert self.success is not None
        # The jobs and steps that the handler adds are in the transaction and need not be sent.
        success = msgspec.structs.replace(self.success, children=(), appended=None)
        self._check_answer(
            self._requests.ask(lambda request: Committing(self._number, request, success)).result()
        )

    def forget_success(self) -> None:
        """Forget the success, because its transaction was rolled back, and inform the worker."""
        if self.success is not None:
            super().forget_success()
            self._requests.send(RolledBack(self._number))

    def _check_answer(self, answer: Answer) -> None:
        if answer.cancel_requested:
            self.cancel_requested = True
        if answer.fault is not None:
            raise answer.fault.error()

    def _add(self, report: Report) -> None:
        self._requests.send(Reported(self._number, _encodable(report)))


def _encodable(report: Report) -> Report:
    """The report with values that can be encoded.

    A number that is too large to encode becomes a smaller number that the worker refuses as well.
    """
    most = MOST_PROGRESS + 1

    def number(value: int | None) -> int | None:
        return None if value is None else min(value, most)

    def words(value: Any) -> str | None:
        return None if value is None else storable_text(value, TRACE)

    return Report(
        stage=words(report.stage),
        done=number(report.done),
        total=number(report.total),
        message=words(report.message),
    )
