"""Plans: generators that yield effects. A method is written once as a plan, for blocking and for async callers.

An operation yields SQL statements, which form one transaction. A plan yields operations and other effects, so it may
take several transactions.

    class App:
        def _pause_queue(self, name: str) -> Plan[None]:
            yield from perform(ops.pause, name)

        pause_queue = sync_method(_pause_queue)
        apause_queue = async_method(_pause_queue)
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from functools import partial, update_wrapper
from types import MethodType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    cast,
    overload,
)

from perdure.errors import BlockingCall, UnsupportedConnection
from perdure.ops.op import Operation
from perdure.plan.once_per_loop import Done, OncePerLoop
from perdure.plan.wakeup import Wakeup
from perdure.store.borrowed import join
from perdure.store.drive import adrive, drive
from perdure.store.store import Store

if TYPE_CHECKING:
    from perdure.plan.coalesce import Coalescer

A = TypeVar("A")
P = ParamSpec("P")
T = TypeVar("T")


class Call(NamedTuple):
    """Perform an operation, on the caller's connection if there is one."""

    operation: Operation[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    conn: object | None = None
    at_once: bool = False


class Coalesce(NamedTuple):
    """Perform an operation together with concurrent calls of the same kind, in one statement."""

    coalescer: Coalescer[Any, Any]
    asked: Any


class InThread(NamedTuple):
    """Call a function that blocks. Async code calls it in a thread."""

    function: Callable[[], Any]


class Pause(NamedTuple):
    """Sleep."""

    seconds: float


class WaitFor(NamedTuple):
    """Wait until a wakeup is set, for at most this many seconds."""

    wakeup: Wakeup
    seconds: float


class RunOnce(NamedTuple):
    """Become the task of the event loop that does the work, or wait for the task that does it."""

    once: OncePerLoop


Effect: TypeAlias = Call | Coalesce | InThread | Pause | WaitFor | RunOnce
Plan: TypeAlias = Generator[Effect, Any, T]


def perform(operation: Operation[P, T], *args: P.args, **kwargs: P.kwargs) -> Plan[T]:
    return cast(T, (yield Call(operation, args, kwargs)))


def perform_on(conn: object | None, operation: Operation[P, T], *args: P.args, **kwargs: P.kwargs) -> Plan[T]:
    """Perform an operation inside the caller's transaction."""
    return cast(T, (yield Call(operation, args, kwargs, conn)))


def perform_at_once(operation: Operation[P, T], *args: P.args, **kwargs: P.kwargs) -> Plan[T]:
    """Perform an operation, but raise StoreBusy instead of waiting for the database's write lock."""
    return cast(T, (yield Call(operation, args, kwargs, at_once=True)))


def coalesce(coalescer: Coalescer[A, T], asked: A) -> Plan[T]:
    """Perform an operation that many callers may ask for at the same time."""
    return cast(T, (yield Coalesce(coalescer, asked)))


def in_thread(function: Callable[[], T]) -> Plan[T]:
    """Call a function that blocks. Blocking code calls it directly, async code calls it in a thread."""
    return cast(T, (yield InThread(function)))


def pause(seconds: float) -> Plan[None]:
    yield Pause(seconds)


def wait_for(wakeup: Wakeup, *, seconds: float) -> Plan[None]:
    yield WaitFor(wakeup, seconds)


def run_once(once: OncePerLoop) -> Plan[Done | None]:
    """Return a function to call when the work is done, or None after another task of the event loop has tried.

    Blocking code always gets a function: threads do not wait for each other's work.
    """
    return cast(Done | None, (yield RunOnce(once)))


def run(store: Store, plan: Plan[T], *, method: str | None = None) -> T:
    """Run a plan in this thread. ``method``: the method that was called. An error may name its async version."""
    try:
        # Raise only an Exception inside the plan. The plan may be suspended inside a user's middleware, which could
        # swallow a KeyboardInterrupt or a cancellation.
        return drive(plan, partial(_wait, store), throw=Exception)
    except UnsupportedConnection as error:
        raise _with_method(error, "async", method and f"a{method}") from None
    finally:
        # If the plan was interrupted, run its finally blocks now, not when the traceback is garbage-collected.
        plan.close()


async def arun(store: Store, plan: Plan[T], *, method: str | None = None) -> T:
    """Run a plan in this task."""
    try:
        return await adrive(plan, partial(_await, store), throw=Exception)
    except UnsupportedConnection as error:
        raise _with_method(error, "sync", method and method.removeprefix("a")) from None
    finally:
        plan.close()


def _with_method(error: UnsupportedConnection, mode: join.Mode, method: str | None) -> UnsupportedConnection:
    """Name the method to use instead, when a sync connection was passed to an async method or the reverse."""
    return join.wrong_mode(mode, f"{method}()") if method and error.code == "conn.wrong_mode" else error


def _wait(store: Store, effect: Effect) -> object:
    match effect:
        case Pause(seconds):
            time.sleep(seconds)
            return None
        case WaitFor(wakeup, seconds):
            wakeup.wait(seconds)
            return None
        case RunOnce():
            return _no_waiters
        case Coalesce(coalescer, asked):
            return coalescer.perform(store, asked)
        case InThread(function):
            return function()
        case Call(operation, args, kwargs, None, at_once):
            perform = store.perform_at_once if at_once else store.perform
            return perform(operation, *args, **kwargs)
        case Call(operation, args, kwargs, conn):
            return join.perform(conn, store, operation, *args, **kwargs)


async def _await(store: Store, effect: Effect) -> object:
    import asyncio

    match effect:
        case Pause(seconds):
            await asyncio.sleep(seconds)
            return None
        case WaitFor(wakeup, seconds):
            await wakeup.await_(seconds)
            return None
        case RunOnce(once):
            return await once.enter()
        case Coalesce(coalescer, asked):
            return await coalescer.aperform(store, asked)
        case InThread(function):
            return await asyncio.to_thread(function)
        case Call(operation, args, kwargs, None, True):
            return await asyncio.to_thread(store.perform_at_once, operation, *args, **kwargs)
        case Call(operation, args, kwargs, None):
            return await store.aperform(operation, *args, **kwargs)
        case Call(operation, args, kwargs, conn):
            return await join.aperform(conn, store, operation, *args, **kwargs)


def _no_waiters(_: object) -> None: ...


class Stored(Protocol):
    """An object with a store on which its plans run."""

    @property
    def store(self) -> Store: ...


S = TypeVar("S", bound=Stored)


class sync_method(Generic[S, P, T]):
    """A descriptor for a blocking method that runs a plan."""

    def __init__(self, plan: Callable[Concatenate[S, P], Plan[T]]) -> None:
        def method(subject: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
            refuse_in_event_loop(self._name)
            return run(subject.store, plan(subject, *args, **kwargs), method=self._name)

        self._method = update_wrapper(method, plan)

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name
        show(self._method, owner, name)

    @overload
    def __get__(self, subject: None, owner: type[S]) -> Callable[Concatenate[S, P], T]: ...
    @overload
    def __get__(self, subject: S, owner: type[S]) -> Callable[P, T]: ...
    def __get__(self, subject: S | None, owner: type[S]) -> Callable[..., T]:
        return self._method if subject is None else MethodType(self._method, subject)


class async_method(Generic[S, P, T]):
    """A descriptor for an async method that runs a plan."""

    def __init__(self, plan: Callable[Concatenate[S, P], Plan[T]]) -> None:
        async def method(subject: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
            return await arun(subject.store, plan(subject, *args, **kwargs), method=self._name)

        self._method = update_wrapper(method, plan)

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name
        show(self._method, owner, name)

    @overload
    def __get__(
        self, subject: None, owner: type[S]
    ) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, subject: S, owner: type[S]) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, subject: S | None, owner: type[S]) -> Callable[..., Coroutine[Any, Any, T]]:
        return self._method if subject is None else MethodType(self._method, subject)


def show(method: Callable[..., object], owner: type, name: str) -> None:
    """Let help(), signatures and tracebacks show the method, not the plan behind it."""
    method.__name__, method.__qualname__ = name, f"{owner.__qualname__}.{name}"
    signature = inspect.signature(method)
    returns = str(signature.return_annotation).removeprefix("Plan[").removesuffix("]")
    vars(method)["__signature__"] = signature.replace(return_annotation=returns)


def in_event_loop() -> bool:
    """Whether an event loop runs in this thread."""
    # If another thread is importing asyncio right now, the function may not exist yet. In that case no loop runs in
    # this thread.
    running_loop = getattr(sys.modules.get("asyncio"), "_get_running_loop", None)
    return running_loop is not None and running_loop() is not None


def refuse_in_event_loop(name: str, instead: str | None = None) -> None:
    """Raise BlockingCall in a thread that runs an event loop: a blocking method would stop every task of the loop."""
    if in_event_loop():
        instead = instead or f"await a{name}()"
        raise BlockingCall(f"{name}() blocks and an event loop runs in this thread: {instead} instead.")
