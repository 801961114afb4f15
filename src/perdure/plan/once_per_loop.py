"""Single flight: one task of an event loop does what all of them need, the others wait for it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from copy import copy
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from perdure.errors import Unavailable

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future

Done = Callable[[Unavailable | None], None]
"""What the first caller must always call, also after a failure or a cancel. Then the next caller tries. If the
database is away, callers that waited for more than half of the attempt get the error; the others retry. Otherwise the
callers would wait that long one after the other."""


class OncePerLoop:
    """The first caller of an event loop enters. The others wait, and continue in their order of arrival."""

    def __init__(self) -> None:
        self._waiting: WeakKeyDictionary[AbstractEventLoop, list[tuple[float, Future[None]]]] = (
            WeakKeyDictionary()
        )

    async def enter(self) -> Done | None:
        """Return a function to the first caller, to call when done. The others wait until then and get None."""
        # Imported here: blocking programs never need asyncio.
        from asyncio import get_running_loop

        loop = get_running_loop()
        waiting = self._waiting.get(loop)
        if waiting is None:
            self._waiting[loop] = []
            return partial(self._done, loop, monotonic())
        future = loop.create_future()
        waiting.append((monotonic(), future))
        await future
        return None

    def _done(self, loop: AbstractEventLoop, began: float, away: Unavailable | None) -> None:
        middle = (began + monotonic()) / 2
        for since, future in self._waiting.pop(loop):
            if not future.done():
                # A closed loop raises: nobody waits there any more.
                with suppress(RuntimeError):
                    if away is None or since > middle:
                        future.set_result(None)
                    else:
                        future.set_exception(copy(away))
