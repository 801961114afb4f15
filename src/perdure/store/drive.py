"""Run a generator: call ``answer`` with what it yields and send the answer back, until it returns.

Code that perdure writes once for blocking and for async callers is a generator. Only these functions drive one, and
``postgres/loop_operation.py``, where each event of a socket is one step. If ``answer`` raises, the error is raised
inside the generator, at its ``yield``.
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
    """Run a generator in this thread. ``throw``: the errors that the generator may handle; others end it at once."""
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
    """Run a generator inside another one, which yields what each answer needs: an operation inside a transaction."""
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
