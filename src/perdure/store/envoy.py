"""One task of an event loop that does what all of them need."""

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
"""To be called in any case, also by one that failed or was cancelled: then another one goes. Only where the database is
away those who have waited for most of it are told so: each would wait as long, one after the other."""


class Envoy:
    """The others wait, and go on in the order in which they came."""

    def __init__(self) -> None:
        self._waiting: WeakKeyDictionary[AbstractEventLoop, list[tuple[float, Future[None]]]] = (
            WeakKeyDictionary()
        )

    async def go(self) -> Done | None:
        """For whoever is to go; None for the others, once that one is done."""
        # Here, because blocking programs do without it.
        from asyncio import get_running_loop

        loop = get_running_loop()
        waiting = self._waiting.get(loop)
        if waiting is None:
            self._waiting[loop] = []
            return partial(self._done, loop, monotonic())
        back = loop.create_future()
        waiting.append((monotonic(), back))
        await back
        return None

    def _done(self, loop: AbstractEventLoop, began: float, away: Unavailable | None) -> None:
        middle = (began + monotonic()) / 2
        for since, back in self._waiting.pop(loop):
            if not back.done():
                # A closed loop refuses: nobody waits there any more.
                with suppress(RuntimeError):
                    if away is None or since > middle:
                        back.set_result(None)
                    else:
                        back.set_exception(copy(away))
