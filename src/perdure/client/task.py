"""A task: a registered function and the ways to enqueue it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import timedelta
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, TypeVar, Unpack, cast

import msgspec

from perdure.client.job import Job
from perdure.errors import BadArguments, InvalidOption, InvalidTask
from perdure.internal.lazy import lazy
from perdure.model.codec import ArgumentCodec, ResultCodec
from perdure.model.job import SECOND, TaskDefinition
from perdure.model.redact import load_names
from perdure.model.reference import ReferenceCodec, references_in
from perdure.model.signature import Signature
from perdure.plan.plan import Plan, async_method, sync_method
from perdure.request.concurrency_key import ConcurrencyKey
from perdure.request.context import CONTEXT, Context
from perdure.request.events import Listener
from perdure.request.job import NOTHING_ASKED, JobRequest, Template
from perdure.request.options import Asked, Named, checked
from perdure.request.times import duration_us
from perdure.store.store import Store
from perdure.worker.handler import Handler, RunIn

if TYPE_CHECKING:
    from perdure.app import App

P = ParamSpec("P")
R = TypeVar("R")


class Enqueuer(Generic[P, R]):
    """A task with options: ``task.using(delay=60)``."""

    def __init__(self, task: Task[P, R], asked: Asked) -> None:
        self._task = task
        self._asked = asked
        self._conn = asked.get("conn")
        options = checked(asked)
        self._arguments = task.arguments
        self._template = Template(
            task.name,
            NOTHING_ASKED if options == NOTHING_ASKED else options,
            task.results.decode,
            options.queue or task.definition.queue,
            task.canonical,
            concurrency_key=task.concurrency_key,
        )

    @property
    def store(self) -> Store:
        return self._task.app.store

    def using(self, **asked: Unpack[Asked]) -> Enqueuer[P, R]:
        """The same task with these options in addition."""
        return Enqueuer(self._task, {**self._asked, **asked})

    def job(self, *args: P.args, **kwargs: P.kwargs) -> JobRequest[R]:
        """A request for ``app.enqueue_many``; nothing is written yet."""
        if self._conn is not None:
            raise InvalidOption("A job request has no connection of its own: give conn to enqueue_many.")
        return self._request(args, kwargs)

    def _request(self, args: tuple[object, ...], kwargs: dict[str, object]) -> JobRequest[R]:
        template = self._template
        try:
            if template.options.idempotency_key is None:
                return JobRequest(template, self._arguments.encode_call(args, kwargs))
            return self._request_values(self._task.signature.bind(args, kwargs))
        except BadArguments:
            values = self._task.signature.bind(args, kwargs)
            if not references_in(values):
                raise
        payload, arguments = self._task.references.encode(values)
        return JobRequest(msgspec.structs.replace(template, refers=True), payload, arguments)

    def _request_values(self, values: dict[str, object]) -> JobRequest[R]:
        """A request for arguments given by parameter name."""
        template, payload = self._template, self._arguments.encode(values)
        if template.options.idempotency_key is None:
            return JobRequest(template, payload)
        return JobRequest(template, payload, self._arguments.encode_canonical(values))

    def _enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Plan[Job[R]]:
        """Enqueue the task with these arguments."""
        jobs = yield from self._task.app._enqueue_all([self._request(args, kwargs)], self._conn)
        return jobs[0]

    def _enqueue_values(self, values: dict[str, object]) -> Plan[Job[R]]:
        jobs = yield from self._task.app._enqueue_all([self._request_values(values)], self._conn)
        return jobs[0]

    enqueue, aenqueue = sync_method(_enqueue), async_method(_enqueue)
    delay, adelay = sync_method(_enqueue), async_method(_enqueue)


class Handling(NamedTuple):
    """The options that only workers need. The database does not store them."""

    run_in: RunIn | None = None
    fatal: tuple[type[BaseException], ...] = ()
    timeout_grace: float = 30.0
    on_failed: Listener | None = None

    @classmethod
    def checked(
        cls,
        *,
        run_in: object = None,
        fatal: object = (),
        timeout_grace: float | timedelta = 30,
        on_failed: object = None,
        is_async: bool,
    ) -> Handling:
        if run_in not in (None, "async", "thread", "process") or (run_in == "thread" and is_async):
            raise InvalidTask(
                'run_in must be "async" (async functions), "thread" (plain functions) or "process".'
            )
        if run_in == "async" and not is_async:
            raise InvalidTask(
                'A plain function would block the event loop: use run_in="thread" or "process".'
            )
        kinds = fatal if isinstance(fatal, tuple | list) else (fatal,)
        if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
            raise InvalidTask("fatal must be one or more exception classes.")
        if on_failed is not None and not callable(on_failed):
            raise InvalidTask("on_failed must be a function.")
        grace = duration_us("timeout_grace", timeout_grace) / SECOND
        return cls(cast(Any, run_in), cast(Any, tuple(kinds)), grace, on_failed)


class Task(Enqueuer[P, R], Named):
    """A registered function with its default options. Calling it calls the function."""

    __name__: str
    declares_timeout = False
    """Whether the code declares a timeout for the task, even if that is the default or None."""

    def __init__(
        self,
        app: App,
        function: Callable[P, Any],
        definition: TaskDefinition,
        aliases: tuple[str, ...] = (),
        handling: Handling = Handling(),  # noqa: B008
        concurrency_key: str | Callable[..., object] | None = None,
    ) -> None:
        self.app = app
        self.function = function
        self.definition = definition
        self.aliases = aliases
        self.name = definition.name
        self.signature = Signature.of(function, CONTEXT)
        self.redact = frozenset(load_names(definition.redact))
        for name in sorted(self.redact):
            if not self.signature.takes(name):
                raise InvalidTask(f"redact names {name!r}, which is not a parameter of the task {self.name}.")
        self.arguments = ArgumentCodec(self.signature)
        self.results = ResultCodec(self.signature.returns)
        self.handling = handling
        self.concurrency_key = (
            None
            if concurrency_key is None
            else ConcurrencyKey(concurrency_key, self.name, self.signature, self.arguments)
        )
        super().__init__(self, {})
        update_wrapper(cast(Any, self), function, updated=())

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    @lazy
    def handler(self) -> Handler:
        """The handler that a worker runs."""
        is_async = isinstance(self, AsyncTask)
        handling = self.handling
        return Handler(
            self.name,
            self.function,
            is_async,
            handling.run_in or ("async" if is_async else "thread"),
            self.signature,
            self.arguments,
            self.results,
            handling.fatal,
            handling.timeout_grace,
            handling.on_failed,
            self.app.middleware,
            self.redact,
            self.declares_timeout,
        )

    @lazy
    def references(self) -> ReferenceCodec:
        """The codec for arguments that refer to results of steps."""
        return ReferenceCodec(self.signature)

    def canonical(self, payload: str) -> str:
        """The arguments of a payload in canonical form, to compare them with other arguments."""
        return self.arguments.encode_canonical(self.arguments.decode(payload))

    def _call(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        if not self.signature.gives_context(args, kwargs):
            kwargs[str(self.signature.context)] = Context.current()
        return self.function(*args, **kwargs)


class SyncTask(Task[P, R]):
    """A task with a synchronous function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return cast(R, self._call(*args, **kwargs))


class AsyncTask(Task[P, R]):
    """A task with an ``async`` function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        return cast(Coroutine[Any, Any, R], self._call(*args, **kwargs))


def default_name(function: Callable[..., Any]) -> str:
    """The name of a task that was registered without a name."""
    module = getattr(function, "__module__", None)
    name = getattr(function, "__name__", None)
    if module in (None, "__main__") or name is None:
        raise InvalidTask("A task in the program's main module needs a name: @app.task(name=...).")
    return f"{module}.{name}"
