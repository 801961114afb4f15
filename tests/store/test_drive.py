"""Generators are driven to their end: operations one statement after the other, errors raised at the yield."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Generator, Mapping
from typing import TypeVar

import pytest

from perdure.errors import Refused
from perdure.ops.op import Op, Param, Query, RoundTrip, Rows, announce, ask, ask_all
from perdure.store.drive import adrive, drive, drive_within
from perdure.store.sqlite.pending_call import PendingCall

T = TypeVar("T")


class Script:
    """Answers each statement with its name and parameters."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def __call__(self, name: str, params: Mapping[str, Param]) -> Rows:
        self.ran.append(name)
        return [(name, *params.values())]


def run(script: Script, op: Callable[[], Op[T]]) -> tuple[T, frozenset[str]]:
    call = PendingCall(op, until=0)
    call.run(script)
    return call.outcome(), call.wake


def test_a_statement_that_only_servers_have_is_not_run() -> None:
    def op() -> Op[list[object]]:
        rows = yield from ask_all(
            Query("a", {}), Query("b", {}, only="server"), Query("c", {}, only="embedded")
        )
        return [*rows]

    script = Script()
    assert run(script, op)[0] == [[("a",)], (), [("c",)]]
    assert script.ran == ["a", "c"]


def test_rows_go_in_and_a_value_comes_out() -> None:
    def op() -> Op[list[object]]:
        one = yield from ask("one", x=1)
        two, three = yield from ask_all(Query("two", {"x": 2}), Query("three", {}))
        return [one, two, three]

    script = Script()
    value, wake = run(script, op)
    assert value == [[("one", 1)], [("two", 2)], [("three",)]]
    assert script.ran == ["one", "two", "three"]
    assert wake == frozenset()


def test_topics_are_collected() -> None:
    def op() -> Op[None]:
        yield RoundTrip((), wake=frozenset({"queue/a"}))
        yield RoundTrip((Query("one", {}),), final=True, wake=frozenset({"queue/b"}))
        yield from announce(frozenset({"worker/1"}))

    assert run(Script(), op) == (None, frozenset({"queue/a", "queue/b", "worker/1"}))


def test_an_operation_without_statements() -> None:
    def op() -> Op[int]:
        yield from announce(frozenset())
        return 7

    assert run(Script(), op) == (7, frozenset())


def test_a_refusal_passes_through() -> None:
    def op() -> Op[None]:
        yield from ask("one")
        raise Refused("no")

    with pytest.raises(Refused, match="no"):
        run(Script(), op)


def counting() -> Generator[int, int, list[int]]:
    """Goes on after a fault; returns all answers and -1 for each fault."""
    got = []
    for n in range(4):
        try:
            got.append((yield n))
        except ZeroDivisionError:
            got.append(-1)
    return got


def divide(n: int) -> int:
    return 6 // n


def test_in_a_thread() -> None:
    assert drive(counting(), divide) == [-1, 6, 3, 2]


def test_in_a_task() -> None:
    async def divide_later(n: int) -> int:
        await asyncio.sleep(0)
        return divide(n)

    assert asyncio.run(adrive(counting(), divide_later)) == [-1, 6, 3, 2]


def test_within_another_generator() -> None:
    def ask_twice(n: int) -> Generator[int, int, int]:
        return (yield n) + (yield n)

    assert drive(drive_within(counting(), ask_twice), divide) == [-1, 12, 6, 4]


def test_an_interrupt_ends_the_generator_and_comes_out() -> None:
    def interrupted(n: int) -> int:
        raise KeyboardInterrupt

    generator = counting()
    with pytest.raises(KeyboardInterrupt):
        drive(generator, interrupted)
    assert inspect.getgeneratorstate(generator) == "GEN_CLOSED"
