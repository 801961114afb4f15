"""What the tasks of an event loop ask for one by one, performed together: one statement and one commit for many."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

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

    def perform(self, store: Store, asked: A) -> T:
        (answer,) = store.perform(self.operation, [asked])
        return answer

    async def aperform(self, store: Store, asked: A) -> T:
        # Here, because blocking programs do without it.
        from asyncio import get_running_loop

        loop = get_running_loop()
        line = self._lines.get(loop)
        if line is None or line.store is not store:
            line = self._lines[loop] = Line(store, self.operation)
        return await line.perform(asked, loop)


class Ticket(NamedTuple, Generic[A, T]):
    asked: A
    answer: Future[T]


class Line(Generic[A, T]):
    """Those who wait in one event loop."""

    def __init__(self, store: Store, operation: Operation[[Sequence[A]], list[T]]) -> None:
        self.store = store
        self._operation = operation
        self._waiting: list[Ticket[A, T]] = []
        self._groups: set[Task[None]] = set()
        self._under_way = 0

    async def perform(self, asked: A, loop: AbstractEventLoop) -> T:
        if self._under_way == UNDER_WAY:
            ticket = Ticket[A, T](asked, loop.create_future())
            self._waiting.append(ticket)
            return await ticket.answer
        self._under_way += 1
        try:
            (answer,) = await self.store.aperform(self._operation, [asked])
            return answer
        finally:
            self._next(loop)

    def _next(self, loop: AbstractEventLoop) -> None:
        """One is over: its place goes to all who wait."""
        tickets, self._waiting = self._waiting, []
        if not _wanted(tickets):
            self._under_way -= 1
            return
        task = loop.create_task(self._serve(tickets, loop))
        self._groups.add(task)
        task.add_done_callback(self._groups.discard)

    async def _serve(self, tickets: Sequence[Ticket[A, T]], loop: AbstractEventLoop) -> None:
        try:
            await self._perform_together(tickets)
        finally:
            for ticket in _wanted(tickets):
                ticket.answer.cancel()  # with the loop that ends
            self._next(loop)

    async def _perform_together(self, tickets: Sequence[Ticket[A, T]]) -> None:
        """All or none. If it is none by somebody's fault, halves are tried until that one is alone with it."""
        wanted = _wanted(tickets)
        if not wanted:
            return
        try:
            answers = await self.store.aperform(self._operation, [ticket.asked for ticket in wanted])
        except Exception as error:
            if len(wanted) == 1 or isinstance(error, Unavailable):
                for ticket in _wanted(wanted):
                    ticket.answer.set_exception(copy(error))
                return
            middle = len(wanted) // 2
            await self._perform_together(wanted[:middle])
            await self._perform_together(wanted[middle:])
            return
        for ticket, answer in zip(wanted, answers, strict=True):
            if not ticket.answer.done():
                ticket.answer.set_result(answer)


def _wanted(tickets: Sequence[Ticket[A, T]]) -> list[Ticket[A, T]]:
    return [ticket for ticket in tickets if not ticket.answer.done()]
