"""The driver itself: it must notice an operation that breaks the rules of operations."""

from __future__ import annotations

import pytest

from perdure.ops.op import Op, Query, RoundTrip, Rows, announce, ask, ask_all, ask_last, operation
from tests.ops.script import Script


def test_answers_come_by_name_and_in_order() -> None:
    def op() -> Op[list[Rows]]:
        one = yield from ask("find", id=1)
        two, other = yield from ask_all(Query("find", {"id": 2}), Query("count", {}))
        three = yield from ask_last("find", id=3, wake=frozenset(["topic"]))
        return [one, two, other, three]

    script = Script(find=[[("a",)], [("b",)]], count=[[(7,)]])
    assert script.play(op()) == [[("a",)], [("b",)], [(7,)], []]
    assert script.asked == [["find"], ["find", "count"], ["find"]]
    assert [step.final for step in script.steps] == [False, False, True]
    assert script.params("find") == [{"id": 1}, {"id": 2}, {"id": 3}]
    assert script.woken == {"topic"}


def test_an_operation_that_goes_on_after_its_final_step_is_caught() -> None:
    def op() -> Op[None]:
        yield RoundTrip((), final=True)
        yield RoundTrip((), wake=frozenset(["heard"]))
        yield RoundTrip((Query("more", {}),))

    with pytest.raises(AssertionError, match="go on"):
        Script().play(op())


def test_an_operation_that_refuses_after_its_final_step_is_caught() -> None:
    def op() -> Op[None]:
        yield RoundTrip((), final=True)
        raise ValueError

    with pytest.raises(AssertionError, match="refuse"):
        Script().play(op())


def test_an_announcement_of_nothing_is_no_step() -> None:
    script = Script()
    script.play(announce(frozenset()))
    assert script.steps == []
    script.play(announce(frozenset(["topic"])))
    assert script.steps == [RoundTrip((), wake=frozenset(["topic"]))]


def test_an_operation_has_a_name_and_a_kind() -> None:
    @operation("write", priority="urgent")
    def beat() -> Op[None]:
        yield from ask_last("beat")

    assert (beat.name, beat.access, beat.priority, beat.pipelined) == ("beat", "write", "urgent", False)
    script = Script()
    script.play(beat())
    assert script.asked == [["beat"]]
