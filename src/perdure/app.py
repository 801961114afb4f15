"""The app: the tasks of a program and the database its jobs live in."""

from __future__ import annotations

import inspect
import os
import re
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from importlib import import_module
from typing import Any, Literal, ParamSpec, Self, TypeVar, Unpack, overload

import msgspec

from perdure.errors import (
    BadArguments,
    InternalError,
    InvalidConfig,
    InvalidOption,
    InvalidTask,
    StoreBusy,
    TaskDisabled,
    TaskNotSynced,
    UnknownTask,
)
from perdure.handle import Job
from perdure.ids import new_ids
from perdure.model.backoff import DEFAULT_BACKOFF, Backoff, as_backoff, dump_backoff
from perdure.model.codec import ResultCodec, encode_plain
from perdure.model.job import JobRow, Span, TaskDefinition
from perdure.moments import span
from perdure.ops import enqueue as enqueue_ops
from perdure.ops import tasks as task_ops
from perdure.ops.topics import queue_topics
from perdure.options import INTEGER, SMALLINT, Asked, checked, number, text, texts, whole
from perdure.store.plan import Plan, aside, blocking, perform, perform_at_once, perform_on, waiting
from perdure.store.store import Store, open_store
from perdure.task import AsyncTask, JobRequest, SyncTask, Task, Template
from perdure.verbs import Verbs
from perdure.worker.ledger import Ledger

P = ParamSpec("P")
R = TypeVar("R")

_PLAIN_RESULT = ResultCodec().decode


class App(Verbs):
    """Tasks and a database. Nothing is opened or read before the first use."""

    def __init__(
        self,
        url: str | None = None,
        *,
        imports: Sequence[str] = (),
        schema: str = "perdure",
        listen_url: str | None = None,
        synchronous: Literal["full", "normal"] = "full",
        keep_keys_for: float | timedelta | None = None,
        lease: float | timedelta = 30,
        prepare: bool | None = None,
    ) -> None:
        if url == "":
            raise InvalidConfig("The database's URL is empty; leave it out for the one of the environment.")
        self._url = url
        self._imports = texts("imports", imports)
        self._schema = text("schema", schema, 63)
        self._synchronous: Literal["full", "normal"] = synchronous
        self._prepare = prepare
        self.listen_url = listen_url
        self.lease = span("lease", lease, least=1)
        self._keep_keys_for = None if keep_keys_for is None else span("keep_keys_for", keep_keys_for)
        self._store: Store | None = None
        # Reentrant: a module of imports= may use the app while it is imported.
        self._opening = threading.RLock()
        self.tasks: dict[str, Task[..., Any]] = {}
        """Every task by its name and by its aliases."""
        self._unsynced: dict[str, TaskDefinition] = {}

    @property
    def store(self) -> Store:
        """The database, opened at the first use."""
        if self._store is None:
            with self._opening:
                for module in self._imports:
                    import_module(module)
                if self._store is None:
                    self._store = open_store(
                        self._url or _url_from_environment(),
                        schema=self._schema,
                        synchronous=self._synchronous,
                        prepare=self._prepare,
                    )
        return self._store

    @cached_property
    def ledger(self) -> Ledger:
        """What a worker performs: claim, finish, heartbeat, rescue."""
        return Ledger(self.store)

    @property
    def keep_keys_for(self) -> Span | None:
        return self._keep_keys_for

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> SyncTask[P, R]: ...
    @overload
    def task(
        self,
        *,
        name: str | None = None,
        aliases: Sequence[str] = (),
        queue: str = "default",
        priority: int = 0,
        max_attempts: int = 8,
        timeout: float | timedelta | None = 900,
        backoff: float | Backoff = DEFAULT_BACKOFF,
        max_crashes: int | None = 3,
    ) -> _Register: ...
    def task(self, *function: Any, **options: Any) -> Any:
        """Register a function as a task: ``@app.task`` or ``@app.task(queue="mail")``."""
        if not function:
            return _Register(self, options)
        first, *others = function
        if others or not callable(first):
            raise InvalidTask("task() takes a function; a name goes by its name: @app.task(name=...).")
        return self._register(first, **options)

    def _register(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        aliases: Sequence[str] = (),
        queue: str = "default",
        priority: int = 0,
        max_attempts: int = 8,
        timeout: float | timedelta | None = 900,
        backoff: float | Backoff = DEFAULT_BACKOFF,
        max_crashes: int | None = 3,
    ) -> Task[..., Any]:
        definition = TaskDefinition(
            name=text("name", name if name is not None else _name_of(function)),
            queue=text("queue", queue),
            priority=number("priority", priority, -SMALLINT - 1, SMALLINT),
            max_attempts=number("max_attempts", max_attempts, 1, INTEGER),
            timeout=None if timeout is None else span("timeout", timeout, least=1),
            backoff=dump_backoff(as_backoff(backoff)),
            max_crashes=whole("max_crashes", max_crashes, 1, INTEGER),
        )
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidTask("A generator cannot be a task: its job would have no result.")
        kind = AsyncTask if inspect.iscoroutinefunction(function) else SyncTask
        task: Task[..., Any] = kind(self, function, definition, tuple(texts("aliases", aliases)))
        for known in (task.name, *task.aliases):
            if known in self.tasks:
                raise InvalidTask(f"There is a task named {known} already.", code="task.duplicate")
        for known in (task.name, *task.aliases):
            self.tasks[known] = task
            self._unsynced[known] = _renamed(definition, known)
        return task

    def _enqueue(
        self, task: str, arguments: Mapping[str, object] | None = None, **asked: Unpack[Asked]
    ) -> Plan[Job[Any]]:
        """Enqueue by name: for a producer without the code. Arguments are plain JSON values."""
        if not isinstance(arguments, Mapping | None):
            raise BadArguments("$: the arguments are given by name, as a dict")
        if text("task", task) in self.tasks:
            known = self.tasks[task].using(**asked)
            return (yield from known._enqueue_values(dict(arguments or {})))
        conn = asked.pop("conn", None)
        options = checked(asked)
        payload = encode_plain({} if arguments is None else arguments)
        template = Template(task, options, _PLAIN_RESULT, options.queue)
        request: JobRequest[Any] = JobRequest(
            template, payload, payload if options.idempotency_key is not None else None
        )
        jobs = yield from self._enqueue_all([request], conn)
        return jobs[0]

    def _enqueue_many(
        self, jobs: Sequence[JobRequest[R]], *, conn: object | None = None
    ) -> Plan[list[Job[R]]]:
        """Enqueue jobs in one transaction; the outcomes are in the order of the requests."""
        if not isinstance(jobs, Iterable):
            raise InvalidOption("enqueue_many takes a list of what task.job(...) returns.")
        jobs = list(jobs)
        if not set(map(type, jobs)) <= {JobRequest}:
            raise InvalidOption("enqueue_many takes what task.job(...) returns.")
        return (yield from self._enqueue_all(jobs, conn))

    def _enqueue_all(self, requests: Sequence[JobRequest[R]], conn: object | None) -> Plan[list[Job[R]]]:
        if not requests:
            return []
        yield from self._ready(conn)
        try:
            return (yield from self._write(requests, conn))
        except InternalError as error:
            yield from self._blame_tasks({request.template.task for request in requests}, error)
            raise

    def _write(self, requests: Sequence[JobRequest[R]], conn: object | None) -> Plan[list[Job[R]]]:
        """Insert jobs in whichever way asks least of the database."""
        template, *others = {request.template for request in requests}
        if len(requests) > 1 and not others and template.bulk:
            ids = new_ids(len(requests))
            jobs = dict(zip(ids, [request.payload for request in requests], strict=True))
            task, options, wake = template.task, template.options, _whom_to_wake(requests[:1])
            queue = yield from perform_on(
                conn, enqueue_ops.enqueue_alike, task, options, jobs, wake or frozenset()
            )
            return [Job(self, template.decode, id, task, queue, "ready", True) for id in ids]
        new = [request.new() for request in requests]
        if any(request.template.options.keyed for request in requests):
            outcomes = yield from perform_on(conn, enqueue_ops.enqueue_keyed, new)
        else:
            outcomes = yield from perform_on(conn, enqueue_ops.enqueue, new, _whom_to_wake(requests))
        return [
            Job(self, request.template.decode, outcome.id, request.template.task)._enqueued(outcome)
            for request, outcome in zip(requests, outcomes, strict=True)
        ]

    def _sync(self, *, exact: bool = False) -> Plan[None]:
        """Write the tasks of this program into the database; ``exact`` disables those it does not have."""
        definitions = [_renamed(task.definition, name) for name, task in self.tasks.items()]
        yield from perform(task_ops.sync, definitions, exact=exact)
        self._synced(definitions)

    enqueue, aenqueue = blocking(_enqueue), waiting(_enqueue)
    enqueue_many, aenqueue_many = blocking(_enqueue_many), waiting(_enqueue_many)
    sync, async_ = blocking(_sync), waiting(_sync)

    def _migrate(self) -> Plan[list[int]]:
        """Apply the migrations the database lacks; return their versions."""
        return (yield from aside(self.store.migrate))

    def _check_schema(self) -> Plan[None]:
        """Raise a SchemaError unless the database fits this version. Changes nothing."""
        yield from aside(self.store.check_schema)

    def _close(self) -> Plan[None]:
        """Give back connections and threads. The app cannot be used afterwards."""
        yield from aside(self.store.close)

    migrate, amigrate = blocking(_migrate), waiting(_migrate)
    check_schema, acheck_schema = blocking(_check_schema), waiting(_check_schema)
    close, aclose = blocking(_close), waiting(_close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def _ready(self, conn: object | None) -> Plan[None]:
        """Before the first operation of a process, and after each new task: the database knows the tasks."""
        if not self._unsynced:
            return
        definitions = list(self._unsynced.values())
        known: dict[str, task_ops.KnownTask] = {}
        # The caller's own transaction may hold SQLite's write lock, and then it cannot be waited for.
        do = perform if conn is None else perform_at_once
        try:
            known = yield from do(task_ops.list_tasks)
            stale = [one for one in definitions if one.name not in known or known[one.name].definition != one]
            if stale:
                yield from do(task_ops.sync, stale)
        except StoreBusy:
            if conn is None:
                raise
            if any(one.name not in known for one in definitions):
                raise TaskNotSynced from None
            return
        self._synced(definitions)

    def _synced(self, definitions: Sequence[TaskDefinition]) -> None:
        for definition in definitions:
            if self._unsynced.get(definition.name) == definition:
                del self._unsynced[definition.name]

    def _blame_tasks(self, names: set[str], error: InternalError) -> Plan[None]:
        """An insert broke on a constraint: by a task that is unknown or disabled, or by a bug."""
        if error.code != "store.constraint":
            return
        known = yield from perform(task_ops.list_tasks)
        for name in sorted(names):
            if name not in known:
                raise UnknownTask(
                    f"No task named {name} is in the database: sync the program that has it (app.sync())."
                ) from None
            if not known[name].enabled:
                raise TaskDisabled(f"The task {name} was disabled by an operator.") from None

    def _handle(self, row: JobRow) -> Job[Any]:
        task = self.tasks.get(row.task)
        decode = _PLAIN_RESULT if task is None else task.results.decode
        return Job[Any](self, decode, row.id, row.task)._seen(row)


class _Register:
    """``@app.task(...)`` before it meets its function."""

    def __init__(self, app: App, options: Mapping[str, Any]) -> None:
        self._app = app
        self._options = options

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> SyncTask[P, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Any:
        return self._app._register(function, **self._options)


def _name_of(function: Callable[..., Any]) -> str:
    module = getattr(function, "__module__", None)
    name = getattr(function, "__name__", None)
    if module in (None, "__main__") or name is None:
        raise InvalidTask("A task in the program's main module needs a name: @app.task(name=...).")
    return f"{module}.{name}"


def _whom_to_wake(requests: Sequence[JobRequest[Any]]) -> frozenset[str] | None:
    """The queues with something to do now; None where only the database knows what is due, or where."""
    queues: set[str] = set()
    for template in {request.template for request in requests}:
        if template.options.delay:
            continue
        if template.queue is None or template.options.run_at is not None:
            return None
        queues.add(template.queue)
    return queue_topics(queues)


def _renamed(definition: TaskDefinition, name: str) -> TaskDefinition:
    return definition if name == definition.name else msgspec.structs.replace(definition, name=name)


def _url_from_environment() -> str:
    """$PERDURE_URL, then $DATABASE_URL if it is one of ours, then a file in the working directory."""
    if url := os.environ.get("PERDURE_URL"):
        return url
    # SQLAlchemy names a driver behind the scheme.
    url = re.sub(r"^(postgresql|sqlite)\+\w+:", r"\1:", os.environ.get("DATABASE_URL", ""))
    ours = url.startswith(("postgresql://", "postgres://", "sqlite://"))
    return url if ours else "sqlite:///perdure.db"
