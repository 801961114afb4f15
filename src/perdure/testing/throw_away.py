"""The throw-away database of a testing block."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar, cast

from perdure.ops.op import Op, Operation, operation
from perdure.store.sqlite.store import SqliteStore
from perdure.testing.run import in_a_loop

P = ParamSpec("P")
T = TypeVar("T")


@operation("write")
def run_inline() -> Op[None]:
    """A marker, not a real operation. When inline mode performs it, ``ThrowAwayStore`` runs the due jobs."""
    yield from ()


class ThrowAwayStore(SqliteStore):
    """A store that can also run its jobs, in blocking and in async code."""

    def __init__(
        self, path: str, *, clock: Callable[[], int], inline: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        super().__init__(path, synchronous="normal", clock=clock)
        self._inline = inline

    def perform(self, operation: Operation[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        if operation is run_inline:
            return cast(T, in_a_loop(self._inline()))
        return super().perform(operation, *args, **kwargs)

    async def aperform(self, operation: Operation[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        if operation is run_inline:
            return cast(T, await self._inline())
        return await super().aperform(operation, *args, **kwargs)
