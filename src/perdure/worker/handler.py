"""A task as a worker sees it: the function, and the options for running it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from perdure.internal import failpoints
from perdure.model.codec import ArgumentCodec, ResultCodec
from perdure.model.redact import Redactor
from perdure.model.signature import Signature
from perdure.request.context import Context
from perdure.request.events import Listener
from perdure.request.middleware import Middleware, around_run

RunIn: TypeAlias = Literal["async", "thread", "process"]

Redact: TypeAlias = Callable[[str], str]
"""A function that removes secrets from a text."""

NOTHING: AbstractContextManager[None] = nullcontext()


@dataclass(frozen=True, slots=True)
class Handler:
    """A task's function, how it is called and where it runs."""

    name: str
    function: Callable[..., Any]
    is_async: bool
    run_in: RunIn
    signature: Signature
    arguments: ArgumentCodec
    results: ResultCodec
    fatal: tuple[type[BaseException], ...] = ()
    timeout_grace: float = 30.0
    on_failed: Listener | None = None
    middleware: Sequence[Middleware] = ()
    redact: frozenset[str] = frozenset()
    """Names of arguments that are never shown."""
    declares_timeout: bool = False
    """Whether the task declares a timeout. If not, the timeout of its queue overrides the default."""

    def call(self, payload: str, context: Context) -> Any:
        """Call the function with a job's arguments. An async function only returns its coroutine."""
        if failpoints.armed:
            failpoints.reach("before_handler")
        args, kwargs = self.signature.call_arguments(self.arguments.decode(payload))
        if self.signature.context is not None:
            kwargs[self.signature.context] = context
        value = self.function(*args, **kwargs)
        if not self.is_async and inspect.iscoroutine(value):
            value.close()
            raise TypeError("A plain function returned a coroutine: make the async function itself the task.")
        return value

    def redactor(self, payload: str) -> Redact:
        """A function that removes the redacted values of these arguments from a text."""
        return Redactor(payload, self.redact).hide if self.redact else _as_it_is

    def around(self, context: Context) -> AbstractContextManager[None]:
        """The middleware around a run of the function. Enter it in the thread or asyncio task of that run."""
        return around_run(self.middleware, self.name, context) if self.middleware else NOTHING


def _as_it_is(text: str) -> str:
    return text
