"""The app's methods that enqueue jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast

from perdure.client.job import Job
from perdure.client.jobs import JobId, job_id, optional_text
from perdure.client.task import Task
from perdure.errors import (
    BadArguments,
    InternalError,
    InvalidOption,
    JobNotFound,
    TaskDisabled,
    Unavailable,
    UnknownTask,
)
from perdure.internal import failpoints, journal
from perdure.model.advice import advise
from perdure.model.codec import ResultCodec, encode_plain
from perdure.model.job import NewJob
from perdure.ops import enqueue as enqueue_ops
from perdure.ops import tasks as task_ops
from perdure.ops.enqueue import Enqueued, Single
from perdure.ops.replay import find_replay_of, find_task_of, replay
from perdure.ops.topics import all_of, queue_topics
from perdure.plan.coalesce import Coalescer
from perdure.plan.plan import Plan, async_method, coalesce, perform, perform_on, sync_method
from perdure.request.ids import new_id, new_ids
from perdure.request.job import JobRequest, Template, checked_requests, inside
from perdure.request.middleware import Middleware
from perdure.request.options import KEY_BYTES, Asked, Named, checked, task_name, text
from perdure.store.store import Store

if TYPE_CHECKING:
    from perdure.app import App

R = TypeVar("R")
T = TypeVar("T")

PLAIN_RESULT = ResultCodec().decode
TRIES = 3
"""How often to try an insert.

An insert that was refused for a disabled task is repeated if the task is enabled by now.
"""


class EnqueueMethods:
    """Methods of App that enqueue jobs."""

    if TYPE_CHECKING:
        tasks: dict[str, Task[..., Any]]
        middleware: list[Middleware]
        _singles: Coalescer[Single, Enqueued]

        @property
        def store(self) -> Store: ...

        def _ready(self, conn: object | None, *, strict: bool = False) -> Plan[None]: ...

        def _mark_all_unsaved(self) -> None: ...

    def _enqueue(
        self, task: str | Named, arguments: Mapping[str, object] | None = None, **asked: Unpack[Asked]
    ) -> Plan[Job[Any]]:
        """Enqueue a task by name, without its code. Arguments are JSON values."""
        if not isinstance(arguments, Mapping | None):
            raise BadArguments("$: arguments must be a dict of names and values")
        name = task_name(task)
        if name in self.tasks:
            known = self.tasks[name].using(**asked)
            return (yield from known._enqueue_values(dict(arguments or {})))
        conn = asked.pop("conn", None)
        options = checked(asked)
        payload = encode_plain({} if arguments is None else arguments)
        template = Template(name, options, PLAIN_RESULT, options.queue)
        request: JobRequest[Any] = JobRequest(
            template, payload, payload if options.idempotency_key is not None else None
        )
        jobs = yield from self._enqueue_all([request], conn)
        return jobs[0]

    def _enqueue_many(
        self, jobs: Sequence[JobRequest[R]], *, conn: object | None = None
    ) -> Plan[list[Job[R]]]:
        """Enqueue jobs in one transaction and return them in the order of the requests."""
        if not isinstance(jobs, Iterable):
            raise InvalidOption("enqueue_many takes a list of what task.job(...) returns.")
        return (yield from self._enqueue_all(checked_requests("enqueue_many", jobs), conn))

    def _replay_job(
        self,
        id: JobId,
        *,
        request_key: str | None = None,
        reason: str | None = None,
        by: str | None = None,
    ) -> Plan[Job[Any]]:
        """Make a new job from a job that succeeded: with the same payload and options, due now.

        ``request_key`` is an idempotency key: a second call with the same key returns the same job, with ``created``
        False.
        """
        source, new = job_id(id), new_id()
        key = None if request_key is None else text("request_key", request_key, KEY_BYTES)
        words = {"reason": optional_text("reason", reason), "by": optional_text("by", by)}
        task = yield from perform(find_task_of, source)
        outcome = None
        if task is not None:
            outcome = yield from self._insert_of(
                {task}, lambda: perform(replay, source, new, request_key=key, **words), None
            )
        if outcome is None and key is not None:
            task, outcome = yield from perform(find_replay_of, source, request_key=key)
        if outcome is None or task is None:
            raise JobNotFound
        decode = self.tasks[task].results.decode if task in self.tasks else PLAIN_RESULT
        return Job[Any](cast("App", self), decode, outcome.id, task)._enqueued(outcome)

    enqueue, aenqueue = sync_method(_enqueue), async_method(_enqueue)
    enqueue_many, aenqueue_many = sync_method(_enqueue_many), async_method(_enqueue_many)
    replay_job, areplay_job = sync_method(_replay_job), async_method(_replay_job)

    def _enqueue_all(self, requests: Sequence[JobRequest[R]], conn: object | None) -> Plan[list[Job[R]]]:
        if not requests:
            return []
        if not self.middleware:
            return (yield from self._insert(requests, conn))
        with inside(self.middleware, requests) as changed:
            return (yield from self._insert(changed, conn))

    def _insert(self, requests: Sequence[JobRequest[R]], conn: object | None) -> Plan[list[Job[R]]]:
        tasks = {request.template.task for request in requests}
        return (yield from self._insert_of(tasks, lambda: self._write(requests, conn), conn))

    def _insert_of(self, tasks: set[str], write: Callable[[], Plan[T]], conn: object | None) -> Plan[T]:
        """Save the tasks if needed, then write their jobs. If the database refuses a task, the error names it."""
        try:
            return (yield from self._insert_known(tasks, write, conn))
        except UnknownTask:
            if not any(task in self.tasks for task in tasks):
                raise
            self._mark_all_unsaved()
            if conn is not None:
                raise  # the caller's transaction may hold the write lock, or may not see the tasks that we would commit
        yield from self._ready(conn, strict=True)
        return (yield from self._insert_known(tasks, write, conn))

    def _insert_known(self, tasks: set[str], write: Callable[[], Plan[T]], conn: object | None) -> Plan[T]:
        yield from self._ready(conn)
        tries = 0
        while True:
            try:
                return (yield from write())
            except InternalError as error:
                if error.code != "store.constraint":
                    raise
                yield from self._blame_tasks(tasks)
                if (tries := tries + 1) == TRIES:
                    raise

    def _write(self, requests: Sequence[JobRequest[R]], conn: object | None) -> Plan[list[Job[R]]]:
        """Insert jobs in the cheapest way for the database."""
        app = cast("App", self)
        if len(requests) == 1 and conn is None and not requests[0].template.options.keyed:
            return [(yield from self._write_one(requests[0]))]
        template, *others = {request.template for request in requests}
        if len(requests) > 1 and not others and template.bulk:
            ids = new_ids(len(requests))
            jobs = dict(zip(ids, [request.payload for request in requests], strict=True))
            task, options, wake = template.task, template.options, _wake(template)
            queue = yield from self._noted(
                ids, perform_on(conn, enqueue_ops.enqueue_alike, task, options, jobs, wake or frozenset())
            )
            return [Job(app, template.decode, id, task, queue, "ready", True) for id in ids]
        new = [request.new() for request in requests]
        if any(request.template.options.keyed for request in requests):
            plan = perform_on(conn, enqueue_ops.enqueue_keyed, new)
        else:
            plan = perform_on(conn, enqueue_ops.enqueue, new, all_of([*map(_wake, (template, *others))]))
        outcomes = yield from self._noted([job.id for job in new], plan, _keys(new))
        return [
            Job(app, request.template.decode, outcome.id, request.template.task)._enqueued(outcome)
            for request, outcome in zip(requests, outcomes, strict=True)
        ]

    def _write_one(self, request: JobRequest[R]) -> Plan[Job[R]]:
        """Insert one job, in one statement with the jobs of concurrent calls."""
        template, new = request.template, request.new()
        # A concurrency key that is computed from a job's arguments is in the request's options, not in the template's.
        options = template.options if template.concurrency_key is None else request.options
        asked = Single(new, options, _wake(template))
        outcome = yield from self._noted([new.id], coalesce(self._singles, asked))
        return Job(cast("App", self), template.decode, new.id, template.task)._enqueued(outcome)

    def _noted(self, ids: Sequence[str], plan: Plan[T], keys: Mapping[str, object] | None = None) -> Plan[T]:
        """Run the plan. If the journal is enabled, record the call and which jobs it returned."""
        if not (failpoints.armed or journal.enabled):
            return (yield from plan)
        failpoints.reach("before_enqueue")
        if journal.enabled:
            journal.note("enqueue", ids, phase="invoke", keys=keys or {})
        try:
            value = yield from plan
        except Unavailable:
            if journal.enabled:
                journal.note("enqueue", ids, phase="unknown")
            raise
        failpoints.reach("after_enqueue_before_answer")
        if journal.enabled:
            answered = [one.id for one in value] if isinstance(value, list) else ids
            journal.note("enqueue", ids, phase="ok", answered=answered)
        return value

    def _blame_tasks(self, names: set[str]) -> Plan[None]:
        """Find the cause of a constraint error: an unknown or disabled task.

        If every task is enabled by now, it returns: a task was enabled in the meantime, or perdure has a bug.
        """
        known = yield from perform(task_ops.list_tasks)
        for name in sorted(names):
            if name not in known:
                raise UnknownTask(
                    advise("No task named {task} is in the database: {save_tasks}.", task=name)
                ) from None
            if not known[name].enabled:
                raise TaskDisabled(f"The task {name} was disabled by an operator.") from None


def _keys(jobs: Sequence[NewJob]) -> dict[str, tuple[str, str, str]] | None:
    """The task, tenant and idempotency key of each job that has a key, for the journal."""
    if not journal.enabled:
        return None
    return {
        job.id: (job.task, job.tenant or "", job.idempotency_key)
        for job in jobs
        if job.idempotency_key is not None
    }


def _wake(template: Template) -> frozenset[str] | None:
    """The topics to announce. None if only the database knows the queue, or whether the job is due."""
    if template.options.delay:
        return frozenset()
    if template.queue is None or template.options.run_at is not None:
        return None
    return queue_topics([template.queue])
