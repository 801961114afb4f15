"""Single flight: one task of an event loop does work that several tasks need, and the other tasks wait for it."""

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
"""The function that the first caller gets and must always call, even after a failure or a cancellation.

The argument is None, or the error if the database was away. With None, the waiting callers continue: if the work is
still not done, the next caller tries. With an error, a caller that waited for more than half of the failed try gets
that error, and only callers that came later retry. If all callers retried, they would wait for the database one after
the other.
"""


class OncePerLoop:
    """Lets one task of each event loop work at a time. Other tasks wait, and continue in the order of their arrival."""

    def __init__(self) -> None:
        self._waiting: WeakKeyDictionary[AbstractEventLoop, list[tuple[float, Future[None]]]] = (
            WeakKeyDictionary()
        )

    async def enter(self) -> Done | None:
        """Return a function to the first caller, which calls it when done.

        The other callers wait until then and get None.
        """
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
                # A closed loop raises RuntimeError, and no task waits in it any more.
                with suppress(RuntimeError):
                    if away is None or since > middle:
                        future.set_result(None)
                    else:
                        future.set_exception(copy(away))
