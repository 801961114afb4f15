"""asyncio tasks that a worker runs besides its loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class BackgroundTasks:
    """Holds tasks until they are done.

    ``changed`` is called after each task, and ``died`` with each task that raised.
    """

    def __init__(self, changed: Callable[[], None], died: Callable[[asyncio.Task[Any]], None]) -> None:
        self._changed = changed
        self._died = died
        self._tasks: set[asyncio.Task[object]] = set()

    def __bool__(self) -> bool:
        """Whether tasks are under way."""
        return bool(self._tasks)

    def start(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        self._changed()
        if not task.cancelled() and task.exception() is not None:
            self._died(task)
