"""One task of an event loop that does what all of them need."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from copy import copy
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from perdure.errors import Unavailable

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future

Done = Callable[[Unavailable | None], None]
"""To be called in any case, also by one that failed or was cancelled: then another one goes. Only where the database is
away nobody else tries: each would wait as long for it, one after the other."""


class Envoy:
    """The others wait, and go on in the order in which they came."""

    def __init__(self) -> None:
        self._waiting: WeakKeyDictionary[AbstractEventLoop, list[Future[None]]] = WeakKeyDictionary()

    async def go(self) -> Done | None:
        """For whoever is to go; None for the others, once that one is done."""
        # Here, because blocking programs do without it.
        from asyncio import get_running_loop

        loop = get_running_loop()
        waiting = self._waiting.get(loop)
        if waiting is None:
            self._waiting[loop] = []
            return partial(self._done, loop)
        waiting.append(back := loop.create_future())
        await back
        return None

    def _done(self, loop: AbstractEventLoop, away: Unavailable | None) -> None:
        for back in self._waiting.pop(loop):
            if not back.done():
                # A closed loop refuses: nobody waits there any more.
                with suppress(RuntimeError):
                    back.set_result(None) if away is None else back.set_exception(copy(away))
