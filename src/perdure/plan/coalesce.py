"""Coalescing of concurrent calls in an event loop: one statement and one commit for many calls."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary, ref

from perdure.errors import Unavailable
from perdure.ops.op import Operation
from perdure.store.store import Store

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future, Task

A = TypeVar("A")
T = TypeVar("T")

UNDER_WAY: Final = 2
"""How many groups of calls may be at the database at once.

While a group is synced to disk, the next group is written.
"""


class Coalescer(Generic[A, T]):
    """Batches concurrent calls of an operation that takes a list and returns the answers in the same order.

    A call runs at once, unless ``UNDER_WAY`` groups are at the database. Then it is queued for the next group.
    """

    def __init__(self, operation: Operation[[Sequence[A]], list[T]]) -> None:
        self.operation = operation
        self._queues: WeakKeyDictionary[AbstractEventLoop, LoopQueue[A, T]] = WeakKeyDictionary()
        self._last: LoopQueue[A, T] | None = None

    def perform(self, store: Store, asked: A) -> T:
        (answer,) = store.perform(self.operation, [asked])
        return answer

    async def aperform(self, store: Store, asked: A) -> T:
        # Imported here: blocking programs never need asyncio.
        from asyncio import get_running_loop

        loop = get_running_loop()
        queue = self._last
        if queue is None or queue.loop() is not loop or queue.store is not store:
            queue = self._last = self._queue(store, loop)
        return await queue.perform(asked, loop)

    def _queue(self, store: Store, loop: AbstractEventLoop) -> LoopQueue[A, T]:
        queue = self._queues.get(loop)
        if queue is None or queue.store is not store:
            queue = self._queues[loop] = LoopQueue(store, self.operation, loop)
        return queue


class QueuedCall(NamedTuple, Generic[A, T]):
    asked: A
    answer: Future[T]


class LoopQueue(Generic[A, T]):
    """The calls of one event loop that wait for the next group."""

    def __init__(
        self, store: Store, operation: Operation[[Sequence[A]], list[T]], loop: AbstractEventLoop
    ) -> None:
        self.store = store
        self.loop = ref(loop)
        self._operation = operation
        self._queued: list[QueuedCall[A, T]] = []
        self._groups: set[Task[None]] = set()
        self._under_way = 0

    async def perform(self, asked: A, loop: AbstractEventLoop) -> T:
        if self._under_way == UNDER_WAY:
            call: QueuedCall[A, T] = QueuedCall(asked, loop.create_future())
            self._queued.append(call)
            return await call.answer
        self._under_way += 1
        try:
            (answer,) = await self.store.aperform(self._operation, [asked])
            return answer
        finally:
            self._pass_on(loop)

    def _pass_on(self, loop: AbstractEventLoop) -> None:
        """After a group has ended, send all queued calls as the next group."""
        if not self._queued:
            self._under_way -= 1
            return
        task = loop.create_task(self._run_groups())
        self._groups.add(task)
        task.add_done_callback(self._group_done)

    def _group_done(self, task: Task[None]) -> None:
        """Start the next group, even if the task was cancelled before it began: the queued calls still wait."""
        self._groups.discard(task)
        self._pass_on(task.get_loop())

    async def _run_groups(self) -> None:
        """Send groups until no call is queued.

        Each group is sent before the callers of the previous group resume, so that the database is not idle.
        """
        calls: Sequence[QueuedCall[A, T]] = ()
        try:
            while calls := self._take():
                await self._perform_together(calls)
        finally:
            for call in _wanted(calls):
                call.answer.cancel()  # this task was cancelled, because the loop is ending

    def _take(self) -> list[QueuedCall[A, T]]:
        calls, self._queued = self._queued, []
        return _wanted(calls)

    async def _perform_together(self, calls: Sequence[QueuedCall[A, T]]) -> None:
        """Perform these calls in one transaction.

        If it fails, perform each half in its own transaction, down to single calls, so that only the wrong calls fail.
        If the database is unavailable, all calls fail.
        """
        try:
            answers = await self.store.aperform(self._operation, [call.asked for call in calls])
        except Exception as error:
            if len(calls) == 1 or isinstance(error, Unavailable):
                for call in _wanted(calls):
                    call.answer.set_exception(copy(error))
                return
            middle = len(calls) // 2
            for half in (calls[:middle], calls[middle:]):
                if wanted := _wanted(half):
                    await self._perform_together(wanted)
            return
        for call, answer in zip(calls, answers, strict=True):
            if not call.answer.done():
                call.answer.set_result(answer)


def _wanted(calls: Sequence[QueuedCall[A, T]]) -> list[QueuedCall[A, T]]:
    return [call for call in calls if not call.answer.done()]
