"""The app: the tasks of a program and the database of its jobs."""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar, overload

from perdure.client.bulk import BulkMethods
from perdure.client.catalog import CatalogMethods, renamed
from perdure.client.database import DatabaseSettings
from perdure.client.definition import WhenFull, define
from perdure.client.enqueue import PLAIN_RESULT, EnqueueMethods
from perdure.client.job import Job
from perdure.client.jobs import JobMethods
from perdure.client.limits import LimitMethods
from perdure.client.task import AsyncTask, Handling, SyncTask, Task
from perdure.client.views import Views
from perdure.client.worker_api import WorkerMethods
from perdure.client.workflows import WorkflowMethods
from perdure.errors import InvalidTask
from perdure.internal.instances import WeakRegistry
from perdure.internal.lazy import lazy
from perdure.model.backoff import DEFAULT_BACKOFF, Backoff
from perdure.model.graph import GATE
from perdure.model.job import JobRow, Span, TaskDefinition
from perdure.model.queue_settings import Settings
from perdure.ops.enqueue import enqueue_each
from perdure.plan.coalesce import Coalescer
from perdure.plan.once_per_loop import OncePerLoop
from perdure.plan.plan import Plan, async_method, in_thread, sync_method
from perdure.request.events import EventName, Listener
from perdure.request.middleware import Middleware
from perdure.request.options import INTEGER, texts, unknown_option, whole
from perdure.request.times import duration_us
from perdure.store.store import Store
from perdure.worker.handler import RunIn
from perdure.worker.operations import WorkerOperations

if TYPE_CHECKING:
    from perdure.testing import Testing

P = ParamSpec("P")
R = TypeVar("R")


class App(
    CatalogMethods, EnqueueMethods, JobMethods, LimitMethods, BulkMethods, WorkflowMethods, WorkerMethods
):
    """Tasks and a database. The database is opened at the first use."""

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
        self.database = DatabaseSettings.checked(url, schema, listen_url, synchronous, prepare)
        self._imports = texts("imports", imports)
        self.lease = duration_us("lease", lease, least=1)
        self._keep_keys_for = None if keep_keys_for is None else duration_us("keep_keys_for", keep_keys_for)
        self._store: Store | None = None
        # A reentrant lock: a module of imports= may use the app while it is imported.
        self._opening = threading.RLock()
        _apps.add(self)
        self.tasks: dict[str, Task[..., Any]] = {}
        """Every task by its name and by its aliases."""
        self.middleware: list[Middleware] = []
        self._singles = Coalescer(enqueue_each)
        self.listeners: dict[EventName, list[Listener]] = {}
        self.queues: dict[str, Settings] = {}
        """The settings that ``app.queue()`` has declared, by queue name."""
        self._unsaved: dict[str, TaskDefinition] = {}
        self._unsaved_queues: dict[str, Settings] = {}
        self.declared_limits: dict[str, int] = {}
        self._save_once = OncePerLoop()

    @property
    def store(self) -> Store:
        """The database, opened at the first use."""
        if self._store is None:
            with self._opening:
                self.import_modules()
                if self._store is None:
                    self._store = self.database.open()
        return self._store

    def use_database(self, **changes: Any) -> None:
        """Change some of the database's settings. This has no effect once the database is open."""
        self.database = self.database._replace(**changes)

    @contextmanager
    def use_store(self, store: Store, *, url: str, methods: Mapping[str, object]) -> Iterator[None]:
        """Use another store, in which no tasks are saved yet, and replace methods of the app, until the block ends."""
        with self._opening:
            self.import_modules()
            operations, known = vars(self).pop("operations", None), frozenset(self.tasks)
            database, own, unsaved = self.database, self._store, self._unsaved
            # A worker's child processes open the database by its URL.
            self.use_database(url=url)
            self._store, self._unsaved, self._unsaved_queues = store, self._definitions(), dict(self.queues)
            vars(self).update(methods)
        try:
            yield
        finally:
            with self._opening:
                for name in ("operations", *methods):
                    vars(self).pop(name, None)
                if operations is not None:
                    vars(self)["operations"] = operations
                self.database, self._store = database, own
                # Tasks that were registered in the block are not in the app's own database yet.
                self._unsaved = {
                    name: one
                    for name, one in self._definitions().items()
                    if name in unsaved or name not in known
                }
                self._unsaved_queues = dict(self.queues)

    def import_modules(self) -> None:
        """Import the modules of ``imports=``, which register their tasks."""
        for module in self._imports:
            import_module(module)

    @property
    def views(self) -> Views:
        """Methods that read jobs, workflows and workers for display: redacted, and limited in size."""
        return Views(self)

    @lazy
    def operations(self) -> WorkerOperations:
        """The operations of a worker: claim, finish, heartbeat, rescue."""
        return WorkerOperations(self.store)

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
        concurrency: int | None = None,
        concurrency_key: str | Callable[..., object] | None = None,
        when_full: WhenFull = "wait",
        limits: Sequence[str] = (),
        run_in: RunIn | None = None,
        fatal: type[BaseException] | Sequence[type[BaseException]] = (),
        timeout_grace: float | timedelta = 30,
        on_failed: Callable[..., object] | None = None,
        redact: Sequence[str] = (),
    ) -> _Register: ...
    def task(self, *function: Any, **options: Any) -> Any:
        """Register a function as a task: ``@app.task`` or ``@app.task(queue="mail")``."""
        known = {*inspect.signature(define).parameters, *Handling._fields, "aliases"} - {"function"}
        if unknown := unknown_option("task", options, known):
            raise InvalidTask(unknown)
        if not function:
            return _Register(self, options)
        first, *others = function
        if others or not callable(first):
            raise InvalidTask("task() takes a function; give a name as @app.task(name=...).")
        return self._register(first, **options)

    def testing(
        self, *, at: datetime | None = None, inline: bool = False, raise_errors: bool | None = None
    ) -> Testing:
        """A block for tests, for ``with`` or ``async with``, with a throw-away database and a clock that stands still.

        ``inline``: an enqueue runs its job before it returns. ``raise_errors``: whether the call that runs a job also
        raises the error of its handler; the default is True only in inline mode.
        """
        from perdure.testing import Testing

        return Testing(self, at=at, inline=inline, raise_errors=raise_errors)

    def _register(
        self,
        function: Callable[..., Any],
        *,
        aliases: Sequence[str] = (),
        concurrency_key: str | Callable[..., object] | None = None,
        **options: Any,
    ) -> Task[..., Any]:
        handling = {name: options.pop(name) for name in Handling._fields if name in options}
        definition = define(function, concurrency_key=concurrency_key, **options)
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidTask("A generator cannot be a task: its job would have no result.")
        is_async = inspect.iscoroutinefunction(function)
        kind = AsyncTask if is_async else SyncTask
        handled = Handling.checked(**handling, is_async=is_async)
        task: Task[..., Any] = kind(
            self, function, definition, tuple(texts("aliases", aliases)), handled, concurrency_key
        )
        for known in (task.name, *task.aliases):
            if known == GATE:
                raise InvalidTask(f"{GATE} is reserved for gates.")
            if known in self.tasks:
                raise InvalidTask(f"There is already a task named {known}.", code="task.duplicate")
        for known in (task.name, *task.aliases):
            self.tasks[known] = task
            self._unsaved[known] = renamed(definition, known)
        return task

    def _migrate(self, *, to: int | None = None) -> Plan[list[int]]:
        """Apply missing migrations, up to version ``to``; return the versions that this call finished."""
        whole("to", to, 0, INTEGER)
        return (yield from in_thread(lambda: self.store.migrate(to=to)))

    def _check_schema(self) -> Plan[None]:
        """Raise a SchemaError unless the database fits this version. Changes nothing."""
        yield from in_thread(self.store.check_schema)

    def _close(self) -> Plan[None]:
        """Release connections and threads. The app cannot be used afterwards."""
        yield from in_thread(self.store.close)

    migrate, amigrate = sync_method(_migrate), async_method(_migrate)
    check_schema, acheck_schema = sync_method(_check_schema), async_method(_check_schema)
    close, aclose = sync_method(_close), async_method(_close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def _handle(self, row: JobRow) -> Job[Any]:
        task = self.tasks.get(row.task)
        decode = PLAIN_RESULT if task is None else task.results.decode
        return Job[Any](self, decode, row.id, row.task)._seen(row)

    def _decode_result(self, task: str, result: str) -> object:
        known = self.tasks.get(task)
        return PLAIN_RESULT(result) if known is None else known.results.decode(result)


_apps: WeakRegistry[App] = WeakRegistry()


def _after_fork() -> None:
    """Replace the locks. A lock that another thread held during the fork would stay locked in the child process."""
    for app in _apps.now():
        app._opening = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class _Register:
    """The decorator that ``@app.task(...)`` returns."""

    def __init__(self, app: App, options: Mapping[str, Any]) -> None:
        self._app = app
        self._options = options

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> SyncTask[P, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Any:
        task = self._app._register(function, **self._options)
        task.declares_timeout = "timeout" in self._options
        return task
