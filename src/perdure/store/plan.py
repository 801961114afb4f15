"""How a verb is written once for blocking and for async callers: a plan, a generator that yields what to wait for.

A plan is to operations what an operation is to statements. It may perform several, each its own transaction.

    class App:
        def _pause_queue(self, name: str) -> Plan[None]:
            yield from perform(ops.pause, name)

        pause_queue = blocking(_pause_queue)
        apause_queue = waiting(_pause_queue)
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from functools import update_wrapper
from keyword import iskeyword
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
from perdure.store import borrowed
from perdure.store.bell import Bell
from perdure.store.envoy import Done, Envoy
from perdure.store.store import Store

if TYPE_CHECKING:
    from perdure.store.gather import Gather

A = TypeVar("A")
P = ParamSpec("P")
T = TypeVar("T")


class Call(NamedTuple):
    """Perform an operation; on the caller's own connection where one is given."""

    operation: Operation[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    conn: object | None = None
    at_once: bool = False


class Share(NamedTuple):
    """Perform an operation on what is asked, together with whoever asks the like at this moment."""

    gather: Gather[Any, Any]
    asked: Any


class Aside(NamedTuple):
    """Call a function that blocks."""

    function: Callable[[], Any]


class Pause(NamedTuple):
    """Wait a little."""

    seconds: float


class Hear(NamedTuple):
    """Wait until a bell rings, for so many seconds at most."""

    bell: Bell
    seconds: float


class Go(NamedTuple):
    """Do it for all tasks of the event loop, or wait for the one that does."""

    envoy: Envoy


Need: TypeAlias = Call | Share | Aside | Pause | Hear | Go
Plan: TypeAlias = Generator[Need, Any, T]


def perform(operation: Operation[P, T], *args: P.args, **kwargs: P.kwargs) -> Plan[T]:
    return cast(T, (yield Call(operation, args, kwargs)))


def perform_on(conn: object | None, operation: Operation[P, T], *args: P.args, **kwargs: P.kwargs) -> Plan[T]:
    """The same, inside the caller's transaction."""
    return cast(T, (yield Call(operation, args, kwargs, conn)))


def perform_at_once(operation: Operation[P, T], *args: P.args, **kwargs: P.kwargs) -> Plan[T]:
    """The same, without waiting for whoever holds the database's write lock: StoreBusy instead."""
    return cast(T, (yield Call(operation, args, kwargs, at_once=True)))


def share(gather: Gather[A, T], asked: A) -> Plan[T]:
    """Perform what many may ask at the same time."""
    return cast(T, (yield Share(gather, asked)))


def aside(function: Callable[[], T]) -> Plan[T]:
    """Call a function that blocks: here, or in a thread where an event loop waits."""
    return cast(T, (yield Aside(function)))


def pause(seconds: float) -> Plan[None]:
    yield Pause(seconds)


def hear(bell: Bell, *, seconds: float) -> Plan[None]:
    yield Hear(bell, seconds)


def go(envoy: Envoy) -> Plan[Done | None]:
    """What to call when it is done, or None when another one has done it. Threads do not wait for each other."""
    return cast(Done | None, (yield Go(envoy)))


def run(store: Store, plan: Plan[T], *, verb: str | None = None) -> T:
    """Carry out a plan in this thread. ``verb``: on behalf of which one, to name its twin where that is the cure."""
    try:
        need = plan.send(None)
        while True:
            try:
                answer = _wait(store, need)
            except Exception as error:
                need = plan.throw(error)
            else:
                need = plan.send(answer)
    except StopIteration as end:
        return cast(T, end.value)
    except UnsupportedConnection as error:
        raise _with_verb(error, "async", verb and twin(verb)) from None
    finally:
        # Interrupted: what the plan has begun ends now, not when somebody lets go of the traceback.
        plan.close()


async def arun(store: Store, plan: Plan[T], *, verb: str | None = None) -> T:
    """Carry out a plan in this task."""
    try:
        need = plan.send(None)
        while True:
            try:
                answer = await _await(store, need)
            except Exception as error:
                need = plan.throw(error)
            else:
                need = plan.send(answer)
    except StopIteration as end:
        return cast(T, end.value)
    except UnsupportedConnection as error:
        raise _with_verb(error, "blocking", verb and verb.removeprefix("a").removesuffix("_")) from None
    finally:
        plan.close()


def _with_verb(
    error: UnsupportedConnection, colour: borrowed.Colour, verb: str | None
) -> UnsupportedConnection:
    """A connection of the wrong colour: the refusal names the verb that goes with it."""
    return borrowed.wrong_colour(colour, f"{verb}()") if verb and error.code == "conn.wrong_colour" else error


def _wait(store: Store, need: Need) -> object:
    match need:
        case Pause(seconds):
            time.sleep(seconds)
            return None
        case Hear(bell, seconds):
            bell.wait(seconds)
            return None
        case Go():
            return _nobody_waits
        case Share(gather, asked):
            return gather.perform(store, asked)
        case Aside(function):
            return function()
        case Call(operation, args, kwargs, None, at_once):
            perform = store.perform_at_once if at_once else store.perform
            return perform(operation, *args, **kwargs)
        case Call(operation, args, kwargs, conn):
            return borrowed.perform(conn, store, operation, *args, **kwargs)


async def _await(store: Store, need: Need) -> object:
    import asyncio

    match need:
        case Pause(seconds):
            await asyncio.sleep(seconds)
            return None
        case Hear(bell, seconds):
            await bell.await_(seconds)
            return None
        case Go(envoy):
            return await envoy.go()
        case Share(gather, asked):
            return await gather.aperform(store, asked)
        case Aside(function):
            return await asyncio.to_thread(function)
        case Call(operation, args, kwargs, None, True):
            return await asyncio.to_thread(store.perform_at_once, operation, *args, **kwargs)
        case Call(operation, args, kwargs, None):
            return await store.aperform(operation, *args, **kwargs)
        case Call(operation, args, kwargs, conn):
            return await borrowed.aperform(conn, store, operation, *args, **kwargs)


def _nobody_waits(_: object) -> None: ...


class Stored(Protocol):
    """Whatever has a store to carry out its plans on."""

    @property
    def store(self) -> Store: ...


S = TypeVar("S", bound=Stored)


class blocking(Generic[S, P, T]):
    """The blocking verb of a plan."""

    def __init__(self, plan: Callable[Concatenate[S, P], Plan[T]]) -> None:
        def verb(subject: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
            refuse_in_event_loop(self._name)
            return run(subject.store, plan(subject, *args, **kwargs), verb=self._name)

        self._verb = update_wrapper(verb, plan)

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name
        show(self._verb, owner, name)

    @overload
    def __get__(self, subject: None, owner: type[S]) -> Callable[Concatenate[S, P], T]: ...
    @overload
    def __get__(self, subject: S, owner: type[S]) -> Callable[P, T]: ...
    def __get__(self, subject: S | None, owner: type[S]) -> Callable[..., T]:
        return self._verb if subject is None else MethodType(self._verb, subject)


class waiting(Generic[S, P, T]):
    """The async verb of a plan."""

    def __init__(self, plan: Callable[Concatenate[S, P], Plan[T]]) -> None:
        async def verb(subject: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
            return await arun(subject.store, plan(subject, *args, **kwargs), verb=self._name)

        self._verb = update_wrapper(verb, plan)

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name
        show(self._verb, owner, name)

    @overload
    def __get__(
        self, subject: None, owner: type[S]
    ) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, subject: S, owner: type[S]) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, subject: S | None, owner: type[S]) -> Callable[..., Coroutine[Any, Any, T]]:
        return self._verb if subject is None else MethodType(self._verb, subject)


def show(verb: Callable[..., object], owner: type, name: str) -> None:
    """Let help(), signatures and tracebacks tell the verb, not the plan behind it."""
    verb.__name__, verb.__qualname__ = name, f"{owner.__qualname__}.{name}"
    signature = inspect.signature(verb)
    returns = str(signature.return_annotation).removeprefix("Plan[").removesuffix("]")
    vars(verb)["__signature__"] = signature.replace(return_annotation=returns)


def twin(name: str) -> str:
    """The async verb of a blocking one."""
    return f"a{name}_" if iskeyword(f"a{name}") else f"a{name}"


def refuse_in_event_loop(name: str, instead: str | None = None) -> None:
    """A blocking verb would stop every task of the loop that runs in this thread. Most have a twin to await."""
    # Another thread may be importing it just now: what it lacks yet does not run here.
    running_loop = getattr(sys.modules.get("asyncio"), "_get_running_loop", None)
    if running_loop is not None and running_loop() is not None:
        instead = instead or f"await {twin(name)}()"
        raise BlockingCall(f"{name}() blocks and an event loop runs in this thread: {instead} instead.")
