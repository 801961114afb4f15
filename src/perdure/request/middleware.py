"""What surrounds every job: one protocol, composed from outside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

from perdure.request.context import Context


class Middleware:
    """Subclass it, override what is needed, and give it to ``app.use``. The first given is the outermost.

    Both are plain context managers, for async code as well. ``run`` is entered where the handler runs: in its
    task, its thread or its process, so that context variables set there are seen by the handler.
    """

    def enqueue(self, task: str, meta: dict[str, Any]) -> AbstractContextManager[None]:
        """Around an enqueue; ``meta`` travels with the job and may be changed before the block begins.

        An error at its end does not undo what is written; jobs that ``ctx.enqueue`` keeps for the success it drops.
        """
        return nullcontext()

    def run(self, task: str, context: Context) -> AbstractContextManager[None]:
        """Around a handler. An error passes through, and may be seen or replaced."""
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
