"""The context of a handler: collects its reports while it runs, and lets it read about its job."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from threading import Lock
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from perdure.errors import BlockingCall, InvalidOption, LeaseLost
from perdure.internal import journal
from perdure.model.codec import storable_text
from perdure.model.graph import Shape, check
from perdure.model.job import Claimed, NewJob, NewStep
from perdure.model.json_text import read_config, read_json
from perdure.model.lifecycle import SHORT, TRACE, Report, Succeeded
from perdure.model.new_steps import NewSteps
from perdure.ops.append import append_under
from perdure.ops.enqueue import enqueue_under
from perdure.ops.finish import finish
from perdure.ops.report import JobReport, LogLine
from perdure.plan.plan import Plan, arun, in_event_loop, perform, perform_on, refuse_in_event_loop, run
from perdure.request.context import NOTHING, Context
from perdure.request.job import JobRequest, checked_requests, inside
from perdure.request.step import Step, checked_steps, new_steps, new_steps_of, step_key
from perdure.request.times import from_us
from perdure.store.store import Store
from perdure.worker.handler import Handler
from perdure.worker.operations import WorkerOperations
from perdure.worker.results import Results, StepResults
from perdure.worker.save import SaveCall, encode_checkpoint, merged
from perdure.worker.transaction import TransactionBlock

T = TypeVar("T")

TAKE_THE_CONTEXT = "let the handler take its context as a parameter, and they are read before it begins,"

MOST_LOGS = 1_000
"""How many log lines are kept until the next report. Further lines are dropped, and one line says how many."""


class JobContext(Context):
    """The context of a job that a worker runs. It may be used from any thread."""

    __slots__ = (
        "_appended",
        "_children",
        "_dropped",
        "_handlers",
        "_hide",
        "_lock",
        "_logs",
        "_operations",
        "_report",
        "block",
        "config_text",
        "deadline_at",
        "on_report",
        "row",
        "save_call",
        "step_results",
        "success",
    )

    def __init__(
        self,
        job: Claimed,
        handlers: Mapping[str, Handler],
        *,
        worker: str,
        operations: WorkerOperations,
        on_report: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(job_id=job.id, run=job.run, attempt=job.attempt, tenant=job.tenant, worker=worker)
        self.row = job
        self.deadline_at: float | None = None
        self.on_report = on_report
        """Called from any thread when there is a new report."""
        self.success: Succeeded | None = None
        """The success that the handler wrote in its own transaction. The transaction may or may not be committed."""
        self.block: TransactionBlock | None = None
        """The ``ctx.transaction()`` that is open, if any."""
        self.config_text: str | None = None
        self.step_results = StepResults(job, handlers)
        self.save_call = SaveCall(operations)
        self._operations = operations
        self._handlers = handlers
        self._hide = self._handler.redactor(job.payload)
        self._lock = Lock()
        self._report: Report | None = None
        self._logs: list[LogLine] = []
        self._dropped = 0
        self._children: list[NewJob] = []
        self._appended: dict[str, tuple[Step[Any], NewStep]] = {}

    @property
    def _handler(self) -> Handler:
        return self._handlers[self.row.task]

    @property
    def store(self) -> Store:
        return self._operations.store

    @property
    def checkpoint(self) -> Any:
        """The checkpoint that the last attempt saved."""
        text = self.row.checkpoint
        return None if text is None else read_json(text)

    @property
    def config(self) -> Mapping[str, Any]:
        text = self.config_text
        # The config is decoded anew each time, so that a caller that changes a value does not change it for other
        # callers.
        return NOTHING if text is None else MappingProxyType(read_config(text, self.row.task))

    @property
    def deadline(self) -> datetime | None:
        """When this attempt times out, by the host's clock."""
        return None if self.deadline_at is None else datetime.fromtimestamp(self.deadline_at, UTC)

    @property
    def scheduled_for(self) -> datetime | None:
        at = self.row.scheduled_for
        return None if at is None else from_us(at)

    @property
    def workflow_id(self) -> str | None:
        return self.row.workflow_id

    @property
    def step_key(self) -> str | None:
        return self.row.step_key

    @property
    def meta(self) -> dict[str, Any]:
        return {} if self.row.meta is None else read_json(self.row.meta, dict[str, Any])

    def progress(self, done: int | None = None, total: int | None = None, message: str | None = None) -> None:
        super().progress(done, total, message)
        self._add(
            Report(done=done, total=total, message=None if message is None else self._redacted(message))
        )

    def stage(self, name: str) -> None:
        self._add(Report(stage=self._redacted(name)))

    def log(self, message: str, *, level: str = "info") -> None:
        # Cut the text before it is kept. Convert it outside the lock, because str() may call code that uses this
        # context.
        line = LogLine(storable_text(as_text(level), SHORT), storable_text(self._redacted(message), TRACE))
        with self._lock:
            if len(self._logs) < MOST_LOGS:
                self._logs.append(line)
            else:
                self._dropped += 1
        self._note_report()

    def take(self) -> JobReport | None:
        """Take the report and the log lines since the last call."""
        with self._lock:
            report, logs, dropped = self._report, self._logs, self._dropped
            if report is None and not logs:
                return None
            self._report, self._logs, self._dropped = None, [], 0
        if dropped:
            logs.append(LogLine("warning", f"{dropped} more lines were dropped"))
        return JobReport(self.row.lease, report or Report(), logs)

    def take_report(self) -> Report | None:
        """Take only the report, and leave the log lines."""
        if self._report is None:
            return None
        with self._lock:
            report, self._report = self._report, None
        return report

    def take_logs(self) -> JobReport | None:
        """Take only the log lines."""
        if not self._logs:
            return None
        with self._lock:
            logs, self._logs, dropped, self._dropped = self._logs, [], self._dropped, 0
        if dropped:
            logs.append(LogLine("warning", f"{dropped} more lines were dropped"))
        return JobReport(self.row.lease, Report(), logs) if logs else None

    def put_back(self, report: JobReport) -> None:
        """Put back a report that could not be written. Values of later reports override its values."""
        with self._lock:
            self._report = report.report if self._report is None else merged(report.report, self._report)
            logs = [*report.logs, *self._logs]
            self._logs, self._dropped = logs[:MOST_LOGS], self._dropped + len(logs[MOST_LOGS:])

    @property
    def results(self) -> Results:
        """The results of the direct parents of a step, by their keys."""
        if self.step_results.parents is None:
            self._do("results", self.step_results.read_all_parents(), instead=TAKE_THE_CONTEXT)
        return Results(self.step_results, self._read_result)

    def _read_result(self, key: str) -> Any:
        if in_event_loop():
            raise BlockingCall(
                f"The result of {key} was not read ahead, because the results of this step's parents are large, and to"
                " read it now would block the event loop: await ctx.aresult_of(key), or go through ctx.aresults()."
            )
        return run(self.store, self._result_of(key))

    async def aresults(self) -> AsyncIterator[tuple[str, Any]]:
        """The key and the result of each direct parent that succeeded.

        Results that were not read ahead are read on demand.
        """
        await arun(self.store, self.step_results.read_all_parents())
        for key in self.step_results.succeeded:
            yield key, await self.aresult_of(key)

    def _result_of(self, key: str) -> Plan[Any]:
        """The result of any ancestor of this step."""
        return self.step_results.result_of(step_key(key))

    def _append(self, steps: Iterable[Step[Any]], *, at_once: bool = False) -> Plan[list[str]]:
        """Add steps to the workflow if this attempt succeeds. Return the ids of the steps.

        ``at_once`` writes them now, if this attempt still has its lease. Steps that an earlier attempt appended are
        not appended again.
        """
        if self.row.workflow_id is None:
            raise InvalidOption("Only a step of a workflow can append steps to it.")
        listed = checked_steps("ctx.append", steps)
        check([Shape(step.key) for step in listed], self._appended.__contains__)
        requests = [step.request for step in listed if step.request is not None]
        with inside(self._handler.middleware, requests) as changed:
            new = [*new_steps(listed, changed, self.row.workflow_id, parent_job=self.row.id)]
            if at_once:
                appended = new_steps_of(listed, new)
                return (yield from perform(append_under, self.row.lease, self.row.workflow_id, appended))
        self._appended |= {step.key: (step, one) for step, one in zip(listed, new, strict=True)}
        return [step.id for step in new]

    @property
    def appended(self) -> NewSteps | None:
        """The steps to append with the success of this attempt."""
        if not self._appended:
            return None
        steps, new = zip(*self._appended.values(), strict=True)
        return new_steps_of(steps, new)

    def _save(self, checkpoint: object) -> Plan[None]:
        """Save a checkpoint, which is durable when this returns. While the database is away, this waits."""
        # Write earlier reports together with the checkpoint. Otherwise a stage that ended with the checkpoint would be
        # written after it.
        report = Report(checkpoint=encode_checkpoint(checkpoint))
        before = self.take()
        if before is not None:
            report = merged(before.report, report)
        full = JobReport(self.row.lease, report, before.logs if before else ())
        try:
            answer = yield from self.save_call.write(full, should_stop=lambda: self.cancel_requested)
        except BaseException:
            if before is not None:
                self.put_back(before)
            raise
        if answer == "lease lost":
            raise LeaseLost
        if answer == "cancel requested":
            self.cancel_requested = True

    def _enqueue(self, *requests: JobRequest[Any], at_once: bool = False) -> Plan[list[str]]:
        """Enqueue jobs if this attempt succeeds. Return the ids of the jobs.

        ``at_once`` writes them now, if this attempt still has its lease.
        """
        later: list[NewJob] = []
        with inside(self._handler.middleware, checked_requests("ctx.enqueue", requests)) as changed:
            new = [msgspec.structs.replace(request.new(), parent_job=self.row.id) for request in changed]
            if at_once:
                self._note_children(new, at_once=True)
                enqueued = yield from perform(enqueue_under, self.row.lease, new)
                return [outcome.id for outcome in enqueued]
            later = new
        # Add the jobs only when all middleware has ended. If a middleware raises at its end, the jobs are not enqueued,
        # even if the handler continues.
        self._note_children(later, at_once=False)
        self._children += later
        return [job.id for job in later]

    def _note_children(self, new: Sequence[NewJob], *, at_once: bool) -> None:
        if journal.enabled:
            parent, token = self.row.lease
            journal.note("children", [job.id for job in new], parent=parent, token=token, at_once=at_once)

    @property
    def children(self) -> tuple[NewJob, ...]:
        """The jobs to enqueue with the success of this attempt."""
        return tuple(self._children)

    @property
    def has_succeeded(self) -> bool:
        return self.success is not None

    def _succeed(self, result: object = None, *, conn: object) -> Plan[None]:
        """Record success in the caller's own transaction, just before the caller commits it."""
        if self.success is not None:
            raise InvalidOption("This job has succeeded already: ctx.succeed() is called once.")
        encoded, reason = self._handler.results.encode(result)
        success = Succeeded(
            self.row.lease,
            encoded,
            reason,
            self.take_report(),
            self.children,
            self.row.workflow_id,
            self.appended,
        )
        finished = yield from perform_on(conn, finish, [success], jitter=random.random)
        if finished.refused:
            raise LeaseLost
        self.success = success

    def forget_success(self) -> None:
        """Forget the success, because its transaction was rolled back."""
        self.success = None

    def transaction(self) -> TransactionBlock:
        """A block with a connection in a transaction. Its end records the job's success and commits."""
        return TransactionBlock(self)

    # These are ordinary methods, not descriptors as in other classes, because they override the methods of Context.

    def save(self, checkpoint: object) -> None:
        self._do("save", self._save(checkpoint))

    async def asave(self, checkpoint: object) -> None:
        await arun(self.store, self._save(checkpoint))

    def enqueue(self, *requests: JobRequest[Any], at_once: bool = False) -> list[str]:
        return self._do("enqueue", self._enqueue(*requests, at_once=at_once))

    async def aenqueue(self, *requests: JobRequest[Any], at_once: bool = False) -> list[str]:
        return await arun(self.store, self._enqueue(*requests, at_once=at_once))

    def result_of(self, key: str) -> Any:
        return self._do("result_of", self._result_of(key))

    async def aresult_of(self, key: str) -> Any:
        return await arun(self.store, self._result_of(key))

    def append(self, steps: Iterable[Step[Any]], *, at_once: bool = False) -> list[str]:
        if at_once:
            return self._do("append", self._append(steps, at_once=True))
        return run(self.store, self._append(steps))  # this never waits, so async code may call it too

    async def aappend(self, steps: Iterable[Step[Any]], *, at_once: bool = False) -> list[str]:
        return await arun(self.store, self._append(steps, at_once=at_once))

    def succeed(self, result: object = None, *, conn: object) -> None:
        self._do("succeed", self._succeed(result, conn=conn))

    async def asucceed(self, result: object = None, *, conn: object) -> None:
        plan = self._succeed(result, conn=conn)
        if self.block is not None and self.block.waits_for_nobody(conn):
            run(self.store, plan)
        else:
            await arun(self.store, plan, method="asucceed")

    def _do(self, method: str, plan: Plan[T], *, instead: str | None = None) -> T:
        refuse_in_event_loop(method, instead)
        return run(self.store, plan, method=method)

    def _redacted(self, value: object) -> str:
        return self._hide(as_text(value))

    def _add(self, report: Report) -> None:
        with self._lock:
            self._report = report if self._report is None else merged(self._report, report)
        self._note_report()

    def _note_report(self) -> None:
        if self.on_report is not None:
            self.on_report()


def as_text(value: object) -> str:
    """A value as text. An error in the value's own code must not fail the handler."""
    try:
        return str(value)
    except Exception:
        return f"a {type(value).__name__} that cannot be shown"
