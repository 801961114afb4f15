"""Run a generator: pass each value that it yields to ``answer``, and send the answer back, until it returns.

Code that serves blocking and async callers is written once, as a generator. Only this module runs such generators,
with one exception: ``postgres/loop_operation.py`` advances a generator by one step for each event of a socket.

If ``answer`` raises an error, the error is raised inside the generator, at its ``yield``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import TypeVar

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")
LowerAsked = TypeVar("LowerAsked")
LowerAnswer = TypeVar("LowerAnswer")
T = TypeVar("T")


def drive(
    generator: Generator[Asked, Answer, T],
    answer: Callable[[Asked], Answer],
    *,
    throw: type[BaseException] = BaseException,
) -> T:
    """Run a generator in this thread.

    ``throw``: which errors of ``answer`` to raise inside the generator. Any other error goes directly to the caller.
    """
    try:
        asked = next(generator)
        while True:
            try:
                reply = answer(asked)
            except throw as error:
                asked = generator.throw(error)
            else:
                asked = generator.send(reply)
    except StopIteration as end:
        value: T = end.value
        return value


async def adrive(
    generator: Generator[Asked, Answer, T],
    answer: Callable[[Asked], Awaitable[Answer]],
    *,
    throw: type[BaseException] = BaseException,
) -> T:
    """Run a generator in this task. ``throw``: as in ``drive``."""
    try:
        asked = next(generator)
        while True:
            try:
                reply = await answer(asked)
            except throw as error:
                asked = generator.throw(error)
            else:
                asked = generator.send(reply)
    except StopIteration as end:
        value: T = end.value
        return value


def drive_within(
    generator: Generator[Asked, Answer, T],
    answer: Callable[[Asked], Generator[LowerAsked, LowerAnswer, Answer]],
) -> Generator[LowerAsked, LowerAnswer, T]:
    """Run a generator inside another generator, for example an operation inside a transaction.

    ``answer`` is a generator too. Its yields go to the driver of the outer generator.
    """
    try:
        asked = next(generator)
        while True:
            try:
                reply = yield from answer(asked)
            except BaseException as error:
                asked = generator.throw(error)
            else:
                asked = generator.send(reply)
    except StopIteration as end:
        value: T = end.value
        return value
