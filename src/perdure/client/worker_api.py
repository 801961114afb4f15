"""The app's methods that run jobs.

They import the worker only when called, because a program that only enqueues does not need it.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from perdure.errors import InvalidConfig, InvalidOption
from perdure.internal.lazy import lazy
from perdure.model.job import Span
from perdure.plan.plan import Plan, refuse_in_event_loop
from perdure.request.events import EventName, Listener
from perdure.request.middleware import Middleware
from perdure.request.options import flag, number, text
from perdure.worker.green_threads import refuse_green_threads
from perdure.worker.handler import Handler
from perdure.worker.operations import Queues, WorkerOperations
from perdure.worker.options import WorkerOptions

if TYPE_CHECKING:
    from perdure.client.database import DatabaseSettings
    from perdure.client.task import Task
    from perdure.worker.worker import Worker

L = TypeVar("L", bound=Listener)

MOST_SLOTS = 10_000


class WorkerMethods:
    """Methods of App that run jobs."""

    if TYPE_CHECKING:
        tasks: dict[str, Task[..., Any]]
        database: DatabaseSettings
        lease: Span

        middleware: list[Middleware]
        listeners: dict[EventName, list[Listener]]

        @lazy
        def operations(self) -> WorkerOperations: ...

        def _save_tasks(self, *, exact: bool = False) -> Plan[None]: ...

    def handlers(self) -> dict[str, Handler]:
        """The handlers of all tasks, by name and alias."""
        return {name: task.handler for name, task in self.tasks.items()}

    def use(self, *middleware: Middleware) -> None:
        """Add middleware around every enqueue and every run of a handler. The first middleware is the outermost.

        Call this in the module that defines the tasks: a worker's child process may import only that module.
        """
        for each in middleware:
            if not isinstance(each, Middleware):
                raise InvalidOption("Middleware is an object of a subclass of perdure.Middleware.")
        self.middleware += middleware

    def on(self, *names: EventName) -> Callable[[L], L]:
        """Subscribe a function, synchronous or async, to events of jobs: ``@app.on("failed")``.

        The worker that ran the job calls the function after the commit that recorded the event.
        """
        unknown = [name for name in names if name not in get_args(EventName)]
        if unknown or not names:
            raise InvalidOption(f"on() takes the names of events: {', '.join(get_args(EventName))}.")

        def subscribe(listener: L) -> L:
            for name in names:
                self.listeners.setdefault(name, []).append(listener)
            return listener

        return subscribe

    @asynccontextmanager
    async def worker(
        self,
        *,
        queues: Queues = None,
        concurrency: int = 20,
        processes: int | None = None,
        drain: float = 30,
        poll: float = 1,
        name: str | None = None,
        target: str | None = None,
    ) -> AsyncIterator[Worker]:
        """Run jobs until the block ends, for example during a web application's lifespan.

        ``concurrency``: how many jobs may run at a time on the event loop and in threads. ``processes``: how many jobs
        of tasks with ``run_in="process"`` may run in addition. The default is one per CPU; 0 leaves such jobs to other
        workers. The worker's ``status`` is None while it runs; ``await worker.wait()`` returns how it ended. If the
        worker died, the end of the block raises WorkerDied, unless the block itself raises an error.
        ``target``: ``module:name`` of this app, for child processes. It is needed only if perdure cannot find the name.
        """
        options = worker_options(
            self,
            queues=queues,
            concurrency=concurrency,
            processes=processes,
            drain=drain,
            poll=poll,
            name=name,
        )
        from perdure.client import worker_run

        async with worker_run.beside(self, options, target) as worker:
            yield worker

    def run_worker(
        self,
        *,
        queues: Queues = None,
        concurrency: int = 20,
        processes: int | None = None,
        burst: bool = False,
        drain: float = 30,
        poll: float = 1,
        name: str | None = None,
        target: str | None = None,
    ) -> int:
        """Run jobs until SIGTERM or SIGINT; with ``burst``, until no job is due. Return the exit code.

        The other options are those of ``worker``.
        """
        refuse_in_event_loop("run_worker", "use async with app.worker()")
        options = worker_options(
            self,
            queues=queues,
            concurrency=concurrency,
            processes=processes,
            burst=burst,
            drain=drain,
            poll=poll,
            name=name,
        )
        from perdure.client import worker_run

        return worker_run.serve(self, options, target)


def worker_options(app: WorkerMethods, **asked: Any) -> WorkerOptions:
    """The validated options of a worker."""
    refuse_green_threads()
    queues = asked.pop("queues")
    if queues is not None and (isinstance(queues, str) or not isinstance(queues, Iterable)):
        raise InvalidOption("queues must be a list of names, or a dict of names and weights.")
    if queues is not None:
        names = [text("queue", name) for name in queues]
        if not names:
            raise InvalidOption("queues is empty; leave it out to serve every queue.")
        if isinstance(queues, Mapping) and not all(_is_weight(weight) for weight in queues.values()):
            raise InvalidOption("The weight of a queue must be a finite number above 0.")
        queues = dict(queues) if isinstance(queues, Mapping) else names
    if asked["name"] is not None:
        asked["name"] = text("name", asked["name"])
    number("concurrency", asked["concurrency"], 1, MOST_SLOTS)
    if asked["processes"] is not None:
        number("processes", asked["processes"], 0, MOST_SLOTS)
    flag("burst", asked.get("burst", False))
    for name in ("drain", "poll"):
        seconds = asked[name]
        if type(seconds) not in (int, float) or not 0 <= seconds < 1e9:
            raise InvalidOption(f"{name} must be a number of seconds, 0 or more.")
    app.operations  # noqa: B018 - opens the store, which imports the modules of imports= and their tasks
    if not app.tasks:
        raise InvalidConfig("This app has no tasks: there is nothing to run.")
    return WorkerOptions(queues=queues, lease=app.lease, **asked)


def _is_weight(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < math.inf
