"""Middleware: code around every enqueue and every handler."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

from perdure.request.context import Context


class Middleware:
    """The base class of middleware.

    Override its methods, and pass objects to ``app.use``. The first object is outermost.

    Both methods return synchronous context managers, for async code as well. The context manager of ``run`` is entered
    where the handler runs: in its asyncio task, its thread or its process. The handler therefore sees the context
    variables that ``run`` sets.
    """

    def enqueue(self, task: str, meta: dict[str, Any]) -> AbstractContextManager[None]:
        """Wrap an enqueue. ``meta`` is stored with the job. The context manager may change it when it is entered.

        An error that it raises when it exits does not undo an enqueue that was committed. But ``ctx.enqueue`` then
        drops the jobs that it would have written with the attempt's success.
        """
        return nullcontext()

    def run(self, task: str, context: Context) -> AbstractContextManager[None]:
        """Wrap a handler. The handler's error passes through the context manager, which may log or replace it."""
        return nullcontext()


@contextmanager
def around_enqueue(chain: Sequence[Middleware], task: str, meta: dict[str, Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for each in chain:
            stack.enter_context(each.enqueue(task, meta))
        yield


@contextmanager
def around_run(chain: Sequence[Middleware], task: str, context: Context) -> Iterator[None]:
    with ExitStack() as stack:
        for each in chain:
            stack.enter_context(each.run(task, context))
        yield
