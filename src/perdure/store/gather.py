"""What the tasks of an event loop ask for one by one, performed together: one statement and one commit for many."""

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
"""How many groups may be at the database: while one is on its way to the disk the next one is written."""


class Gather(Generic[A, T]):
    """An operation that takes what was asked as a list, and answers in its order.

    Nobody waits for company: only while as many as may be are under way, others gather for the next one.
    """

    def __init__(self, operation: Operation[[Sequence[A]], list[T]]) -> None:
        self.operation = operation
        self._lines: WeakKeyDictionary[AbstractEventLoop, Line[A, T]] = WeakKeyDictionary()
        self._last: Line[A, T] | None = None

    def perform(self, store: Store, asked: A) -> T:
        (answer,) = store.perform(self.operation, [asked])
        return answer

    async def aperform(self, store: Store, asked: A) -> T:
        # Here, because blocking programs do without it.
        from asyncio import get_running_loop

        loop = get_running_loop()
        line = self._last
        if line is None or line.loop() is not loop or line.store is not store:
            line = self._last = self._line(store, loop)
        return await line.perform(asked, loop)

    def _line(self, store: Store, loop: AbstractEventLoop) -> Line[A, T]:
        line = self._lines.get(loop)
        if line is None or line.store is not store:
            line = self._lines[loop] = Line(store, self.operation, loop)
        return line


class Ticket(NamedTuple, Generic[A, T]):
    asked: A
    answer: Future[T]


class Line(Generic[A, T]):
    """Those who wait in one event loop."""

    def __init__(
        self, store: Store, operation: Operation[[Sequence[A]], list[T]], loop: AbstractEventLoop
    ) -> None:
        self.store = store
        self.loop = ref(loop)
        self._operation = operation
        self._waiting: list[Ticket[A, T]] = []
        self._groups: set[Task[None]] = set()
        self._under_way = 0

    async def perform(self, asked: A, loop: AbstractEventLoop) -> T:
        if self._under_way == UNDER_WAY:
            ticket: Ticket[A, T] = Ticket(asked, loop.create_future())
            self._waiting.append(ticket)
            return await ticket.answer
        self._under_way += 1
        try:
            (answer,) = await self.store.aperform(self._operation, [asked])
            return answer
        finally:
            self._pass_on(loop)

    def _pass_on(self, loop: AbstractEventLoop) -> None:
        """One is over: its place goes to all who wait."""
        if not self._waiting:
            self._under_way -= 1
            return
        task = loop.create_task(self._serve())
        self._groups.add(task)
        task.add_done_callback(self._served)

    def _served(self, task: Task[None]) -> None:
        """Also of a task that was cancelled before it began: those who wait still do."""
        self._groups.discard(task)
        self._pass_on(task.get_loop())

    async def _serve(self) -> None:
        """Group after group, each sent before those of the last one go on: the database works while they do."""
        tickets: Sequence[Ticket[A, T]] = ()
        try:
            while tickets := self._take():
                await self._perform_together(tickets)
        finally:
            for ticket in _wanted(tickets):
                ticket.answer.cancel()  # with the loop that ends

    def _take(self) -> list[Ticket[A, T]]:
        tickets, self._waiting = self._waiting, []
        return _wanted(tickets)

    async def _perform_together(self, tickets: Sequence[Ticket[A, T]]) -> None:
        """All or none. If it is none by somebody's fault, halves are tried until that one is alone with it."""
        try:
            answers = await self.store.aperform(self._operation, [ticket.asked for ticket in tickets])
        except Exception as error:
            if len(tickets) == 1 or isinstance(error, Unavailable):
                for ticket in _wanted(tickets):
                    ticket.answer.set_exception(copy(error))
                return
            middle = len(tickets) // 2
            for half in (tickets[:middle], tickets[middle:]):
                if wanted := _wanted(half):
                    await self._perform_together(wanted)
            return
        for ticket, answer in zip(tickets, answers, strict=True):
            if not ticket.answer.done():
                ticket.answer.set_result(answer)


def _wanted(tickets: Sequence[Ticket[A, T]]) -> list[Ticket[A, T]]:
    return [ticket for ticket in tickets if not ticket.answer.done()]
