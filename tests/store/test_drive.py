"""An operation is driven to its end, one statement after the other."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from perdure.errors import Refused
from perdure.ops.op import Op, Param, Query, RoundTrip, Rows, announce, ask, ask_all
from perdure.store.drive import drive


class Script:
    """Answers each statement with its name and parameters."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def __call__(self, name: str, params: Mapping[str, Param]) -> Rows:
        self.ran.append(name)
        return [(name, *params.values())]


def test_a_statement_that_only_servers_have_is_not_run() -> None:
    def op() -> Op[list[object]]:
        rows = yield from ask_all(
            Query("a", {}), Query("b", {}, only="server"), Query("c", {}, only="embedded")
        )
        return [*rows]

    script = Script()
    assert drive(script, op())[0] == [[("a",)], (), [("c",)]]
    assert script.ran == ["a", "c"]


def test_rows_go_in_and_a_value_comes_out() -> None:
    def op() -> Op[list[object]]:
        one = yield from ask("one", x=1)
        two, three = yield from ask_all(Query("two", {"x": 2}), Query("three", {}))
        return [one, two, three]

    script = Script()
    value, wake = drive(script, op())
    assert value == [[("one", 1)], [("two", 2)], [("three",)]]
    assert script.ran == ["one", "two", "three"]
    assert wake == frozenset()


def test_topics_are_collected() -> None:
    def op() -> Op[None]:
        yield RoundTrip((), wake=frozenset({"queue/a"}))
        yield RoundTrip((Query("one", {}),), final=True, wake=frozenset({"queue/b"}))
        yield from announce(frozenset({"worker/1"}))

    assert drive(Script(), op()) == (None, frozenset({"queue/a", "queue/b", "worker/1"}))


def test_an_operation_without_statements() -> None:
    def op() -> Op[int]:
        yield from announce(frozenset())
        return 7

    assert drive(Script(), op()) == (7, frozenset())


def test_a_refusal_passes_through() -> None:
    def op() -> Op[None]:
        yield from ask("one")
        raise Refused("no")

    with pytest.raises(Refused, match="no"):
        drive(Script(), op())
