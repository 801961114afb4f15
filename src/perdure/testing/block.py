"""The testing block, in which an app uses a throw-away database and a clock that only the test moves.

A real worker runs the jobs when the test asks for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from time import time_ns
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar, overload

import msgspec

from perdure.client.job import Job
from perdure.client.jobs import PAGE
from perdure.client.task import Task
from perdure.client.workflow_handle import StartedWorkflow
from perdure.errors import InvalidOption, Refused, UnsupportedConnection
from perdure.model.job import Instant, JobRow, State
from perdure.model.reference import refers
from perdure.ops.queues import Queue, list_queues
from perdure.ops.topics import ANYTHING
from perdure.plan.plan import Plan, arun, perform, refuse_in_event_loop, run
from perdure.request.job import JobRequest
from perdure.request.options import Named, task_name
from perdure.request.times import duration_us, from_us, to_us
from perdure.testing.run import Run, in_a_loop
from perdure.testing.throw_away import ThrowAwayStore, run_inline

if TYPE_CHECKING:
    from perdure.app import App

R = TypeVar("R")
T = TypeVar("T")

MOST_ATTEMPTS = 1_000
"""The most attempts that ``run_until_done`` runs before it assumes that the jobs never end."""


class EnqueuedJob(NamedTuple, Generic[R]):
    """A job and its arguments by parameter name. Defaults are not filled in."""

    job: Job[R]
    args: dict[str, Any]


class Testing:
    """The testing block, as ``app.testing()`` returns it, with the methods for a test."""

    # Otherwise pytest would collect this class as a test wherever it is imported.
    __test__ = False

    def __init__(
        self, app: App, *, at: datetime | None = None, inline: bool = False, raise_errors: bool | None = None
    ) -> None:
        self._app = app
        self._now: Instant = time_ns() // 1000 if at is None else to_us("at", at)
        self._inline = inline
        self._raise_errors = inline if raise_errors is None else raise_errors

    def __enter__(self) -> Self:
        with self._app._opening:
            if isinstance(self._app._store, ThrowAwayStore):
                raise Refused(
                    "This app is already in a testing block: leave that block first.", code="testing.nested"
                )
            with ExitStack() as stack:
                directory = TemporaryDirectory(prefix="perdure-testing-", ignore_cleanup_errors=True)
                path = str(Path(stack.enter_context(directory), "jobs.db"))
                self._store = ThrowAwayStore(path, clock=lambda: self._now, inline=self._run_inline)
                stack.callback(self._store.close)
                inline = {"_enqueue_all": self._enqueue_and_run, "_moving": self._move_and_run}
                methods = inline if self._inline else {}
                stack.enter_context(self._app.use_store(self._store, url=self.url, methods=methods))
                self._cleanup = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._cleanup.close()

    async def __aenter__(self) -> Self:
        # This does not open the database, so it hardly blocks.
        return self.__enter__()

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.to_thread(self.__exit__)

    @property
    def url(self) -> str:
        """The URL of the throw-away database."""
        return f"sqlite:///{self._store.path}"

    @property
    def now(self) -> datetime:
        """The time of the block's clock."""
        return from_us(self._now)

    def advance(
        self,
        by: timedelta | None = None,
        /,
        *,
        weeks: float = 0,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        milliseconds: float = 0,
    ) -> datetime:
        """Move the clock forward and return its new time. Jobs that become due wait until the test runs them."""
        if not isinstance(by, timedelta | None):
            raise InvalidOption("Use a unit: advance(seconds=60), or advance(timedelta(minutes=1)).")
        named = timedelta(
            weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds
        )
        self._set(self._now + duration_us("advance", (by or timedelta()) + named))
        return self.now

    def run_until_idle(
        self, *, timeout: float = 10, raise_errors: bool | None = None, concurrency: int = 1
    ) -> list[Job[Any]]:
        """Run every due job, including jobs that running jobs enqueue, and return the jobs that ran.

        ``raise_errors``: raise the error of the first attempt that failed, once everything has run.
        """
        refuse_in_event_loop("run_until_idle")
        return in_a_loop(
            self.arun_until_idle(timeout=timeout, raise_errors=raise_errors, concurrency=concurrency)
        )

    async def arun_until_idle(
        self, *, timeout: float = 10, raise_errors: bool | None = None, concurrency: int = 1
    ) -> list[Job[Any]]:
        """``run_until_idle`` for async code. Async handlers run on the caller's event loop."""
        one = self._begin(timeout, concurrency)
        await one.until_idle()
        return await self._end(one, raise_errors)

    def run_until_done(
        self,
        *,
        limit: int = MOST_ATTEMPTS,
        timeout: float = 10,
        raise_errors: bool | None = None,
        concurrency: int = 1,
    ) -> list[Job[Any]]:
        """Run due jobs and move the clock to the time of the next job, until no job is left to run.

        ``limit``: the most attempts, in case the jobs never end.
        """
        refuse_in_event_loop("run_until_done")
        return in_a_loop(
            self.arun_until_done(
                limit=limit, timeout=timeout, raise_errors=raise_errors, concurrency=concurrency
            )
        )

    async def arun_until_done(
        self,
        *,
        limit: int = MOST_ATTEMPTS,
        timeout: float = 10,
        raise_errors: bool | None = None,
        concurrency: int = 1,
    ) -> list[Job[Any]]:
        """``run_until_done`` for async code."""
        one = self._begin(timeout, concurrency)
        await one.until_idle()
        while (at := await arun(self._store, self._next())) is not None:
            if len(one.claimed) >= limit:
                raise Refused(
                    f"There are jobs left after {len(one.claimed)} attempts; limit= allows more.",
                    code="testing.limit",
                )
            self._set(at)
            await one.until_idle()
        return await self._end(one, raise_errors)

    @overload
    def enqueued(self, task: Task[..., R], *, state: State | None = None) -> list[EnqueuedJob[R]]: ...
    @overload
    def enqueued(self, task: str | None = None, *, state: State | None = None) -> list[EnqueuedJob[Any]]: ...
    def enqueued(
        self, task: Task[..., Any] | str | None = None, *, state: State | None = None
    ) -> list[EnqueuedJob[Any]]:
        """The jobs of a task, or of all tasks, in the order they were enqueued.

        ``state``: only jobs with this ``job.state``; ``ready`` includes jobs that are not due yet. Async code may call
        this method too, because it only reads the throw-away database.
        """
        return [
            EnqueuedJob(job, self._arguments(job))
            for job in run(self._store, self._list(task=task, state=state))
        ]

    @overload
    def assert_enqueued(self, task: Task[..., R], /, **args: object) -> EnqueuedJob[R]: ...
    @overload
    def assert_enqueued(self, task: str, /, **args: object) -> EnqueuedJob[Any]: ...
    def assert_enqueued(self, task: Task[..., Any] | str, /, **args: object) -> EnqueuedJob[Any]:
        """The last job of a task that was enqueued with these arguments. Other arguments may have any value."""
        __tracebackhide__ = True
        jobs: list[EnqueuedJob[Any]] = self.enqueued(task)
        for one in jobs[::-1]:
            if args.items() <= one.args.items():
                return one
        seen = "".join(f"\n  {one.args}" for one in jobs) or " none at all"
        raise AssertionError(f"No job of {task_name(task)} was enqueued with {args}; there are:{seen}")

    # The clock

    def _set(self, now: Instant) -> None:
        to_us("advance", from_us(now))
        self._now = max(self._now, now)
        # A worker that runs beside the test notices the new time at once.
        self._store.announce(frozenset((ANYTHING,)))

    def _next(self) -> Plan[Instant | None]:
        """The next time at which a job becomes due, expires or is rescued, or a gate times out; None if no job is left.

        Raises Refused if jobs are left that cannot run, however far the clock moves.
        """
        app = self._app
        ready = yield from self._list(state="ready")
        running = yield from self._list(state="running")
        opened = yield from self._list(state="open")
        ends = [job.row.run_at for job in opened if job.row and job.row.timeout is not None]
        if not (ready or running):
            return min(ends, default=None)
        queues = {queue.name: queue for queue in (yield from perform(list_queues))}
        moments = [self._moment(job.row, queues.get(job.row.queue)) for job in ready if job.row] + ends
        if running:
            # A worker outside this run has claimed the running jobs. They are rescued when its lease expires.
            moments += [worker.expires_at for worker in (yield from app._list_workers())]
        at = min((at for at in moments if at is not None), default=0)
        if at <= self._now:
            job = (*ready, *running)[0]
            raise Refused(
                f"{len(ready) + len(running)} jobs are left that cannot run, the first is of the task {job.task}; "
                f"app.explain_job({job.id!r}) says why.",
                code="testing.stuck",
            )
        return at

    def _moment(self, row: JobRow, queue: Queue | None) -> Instant | None:
        paused = queue is not None and queue.paused and queue.resume_at is None
        if row.held is not None or row.task not in self._app.tasks or paused:
            return row.expires_at
        if queue is None:
            return row.run_at
        return max(row.run_at, queue.cool_until or row.run_at, queue.resume_at or row.run_at)

    # Running

    def _begin(self, timeout: float, concurrency: int) -> Run:
        if self._app._store is not self._store:
            raise Refused("The block of app.testing() has ended.", code="testing.over")
        return Run(self._app, self._store, timeout=timeout, concurrency=concurrency)

    async def _end(self, one: Run, raise_errors: bool | None) -> list[Job[Any]]:
        __tracebackhide__ = True
        if one.error is not None and (self._raise_errors if raise_errors is None else raise_errors):
            raise one.error
        jobs = await arun(self._store, self._app._get_jobs(one.jobs))
        return [job for job in jobs if job is not None]

    def _enqueue_and_run(self, requests: Sequence[JobRequest[R]], conn: object | None) -> Plan[list[Job[R]]]:
        """Enqueue jobs and run them. In inline mode every enqueue of the app comes here."""
        _refuse(conn)
        jobs = yield from type(self._app)._enqueue_all(self._app, requests, None)
        if jobs:
            yield from perform(run_inline)
        for job in jobs:
            yield from job._refresh()
        return jobs

    def _move_and_run(self, act: Plan[T], conn: object | None) -> Plan[T]:
        """Perform an action and run the jobs that it made due.

        In inline mode every action that can release steps comes here.
        """
        _refuse(conn)
        done = yield from act
        yield from perform(run_inline)
        if isinstance(done, StartedWorkflow):
            yield from done._refresh()
        return done

    async def _run_inline(self) -> None:
        await self.arun_until_idle()

    # Reading

    def _list(self, *, task: str | Named | None = None, state: State | None = None) -> Plan[list[Job[Any]]]:
        """All jobs whose stored state is ``state``, oldest first. ``ready`` includes scheduled and held jobs."""
        jobs: list[Job[Any]] = []
        while True:
            page = yield from self._app._list_jobs(
                task=task, limit=PAGE, before=jobs[-1].id if jobs else None
            )
            jobs += page
            if len(page) < PAGE:
                return [job for job in jobs[::-1] if state in (None, job.state)]

    def _arguments(self, job: Job[Any]) -> dict[str, Any]:
        payload = job.row.payload if job.row else "{}"
        task = self._app.tasks.get(job.task)
        if task is None or (job.row and job.row.workflow_id and refers(payload)):
            # The task belongs to another program, or arguments refer to results that do not exist yet.
            return msgspec.json.decode(payload, type=dict[str, Any])
        return task.arguments.decode(payload)


def _refuse(conn: object | None) -> None:
    if conn is not None:
        raise UnsupportedConnection(
            "In inline mode a job runs before your transaction is committed and would not see it: "
            "leave out inline=True, commit, and call run_until_idle().",
            code="testing.inline",
        )
