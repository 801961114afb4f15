"""Calls of the SQLite store: operations that wait to run or are running, and how their callers get the outcome."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from perdure.ops.op import Answers, Op, RoundTrip
from perdure.store.drive import drive
from perdure.store.sqlite.connect import Execute
from perdure.store.sqlite.self_deadlock import LOOK_AFTER

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

T = TypeVar("T")

CALL_BACK_SECONDS = 1.0
"""How long to wait for an event loop to call a function."""


class PendingCall(Generic[T]):
    """An operation, its deadline, and its outcome, which is final once ``done`` is set."""

    leads = False
    done = False
    wake: frozenset[str] = frozenset()
    _error: Exception | None = None
    _value: T

    def __init__(self, start: Callable[[], Op[T]], *, until: float, urgent: bool = False) -> None:
        self._start = start
        self.until = until
        self.urgent = urgent

    def run(self, execute: Execute) -> None:
        """Run the operation from the start. Its writes may still be rolled back."""
        self._error = None
        wake: frozenset[str] = frozenset()

        def answer(trip: RoundTrip) -> Answers:
            nonlocal wake
            wake |= trip.wake
            return [() if only == "server" else execute(name, params) for name, params, only in trip.queries]

        self._value = drive(self._start(), answer)
        self.wake = wake

    def call_back(self, function: Callable[[], None]) -> None:
        """Call a function on the caller's event loop or, if the caller waits in a thread, in this thread.

        Its error is raised here. The thread that writes the call uses this method.
        """
        function()

    def fail(self, error: Exception) -> None:
        self._error = error
        self.wake = frozenset()

    def outcome(self) -> T:
        if self._error is not None:
            raise self._error
        return self._value


class ThreadCall(PendingCall[T]):
    """A call whose caller waits in a thread."""

    _gate: threading.Lock | None = None

    def close_gate(self) -> None:
        # The gate is a lock, because an Event costs ten times as much. A call that need not wait has no gate.
        self._gate = threading.Lock()
        self._gate.acquire()

    def wait(self, look: Callable[[], None]) -> None:
        """Wait until this call is done or leads. If that takes long, call ``look`` once; its error ends the wait."""
        if self._gate is not None and not self._gate.acquire(timeout=LOOK_AFTER):
            look()
            self._gate.acquire()

    def open_gate(self) -> None:
        if self._gate is not None:
            self._gate.release()


class LoopCall(PendingCall[T]):
    """A call whose caller awaits it in an event loop."""

    def __init__(self, start: Callable[[], Op[T]], *, until: float, urgent: bool = False) -> None:
        super().__init__(start, until=until, urgent=urgent)
        # Imported here, because blocking programs never need asyncio.
        from asyncio import get_running_loop

        self.loop = get_running_loop()
        self._answered = self.loop.create_future()

    @property
    def wanted(self) -> bool:
        """Whether the caller still waits."""
        return not self._answered.cancelled()

    async def wait(self) -> None:
        await self._answered

    def call_back(self, function: Callable[[], None]) -> None:
        """Call a function on the event loop, and raise its error here. Give up if the loop is closed or blocked."""
        called: Future[None] = Future()

        def call() -> None:
            try:
                function()
            except Exception as error:
                called.set_exception(error)
            else:
                called.set_result(None)

        with suppress(RuntimeError, FutureTimeout):  # the loop is closed, or blocked
            self.loop.call_soon_threadsafe(call)
            called.result(CALL_BACK_SECONDS)

    def answer(self) -> None:
        # The caller may have been cancelled.
        if not self._answered.done():
            self._answered.set_result(None)


def wake_callers(calls: Iterable[PendingCall[Any]]) -> None:
    """Wake the callers of these calls. Each event loop is woken once."""
    by_loop: dict[AbstractEventLoop, list[LoopCall[Any]]] = {}
    for call in calls:
        if isinstance(call, ThreadCall):
            call.open_gate()
        elif isinstance(call, LoopCall):
            by_loop.setdefault(call.loop, []).append(call)
    for loop, answered in by_loop.items():
        # A closed loop raises an error, but no caller waits there any more.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_answer, answered)


def _answer(calls: Sequence[LoopCall[Any]]) -> None:
    for call in calls:
        call.answer()
