"""Graphs of steps: refusals that name the step, initial states, cascades, the status, and requeues."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import InvalidWorkflow
from perdure.model.graph import (
    Edge,
    InitialState,
    Shape,
    Tally,
    Waiting,
    cascade,
    check,
    foreign_references,
    initial_states,
    requeued,
)
from tests.model.reference import reference


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([Shape("a"), Shape("a")], "two steps named a"),
        ([Shape("a", ["a"])], "a waits for itself"),
        ([Shape("a", ["b"])], "a waits for b, which is not a step"),
        ([Shape("a"), Shape("b", ["a"], ["a"])], "b names a twice"),
        (
            [Shape("x"), Shape("a", ["c"]), Shape("b", ["a"]), Shape("c", ["b"]), Shape("d", ["c"])],
            "wait for one another: a → b → c → a|b → c → a → b|c → a → b → c",
        ),
    ],
)
def test_what_cannot_run_is_refused_and_named(steps: list[Shape], said: str) -> None:
    with pytest.raises(InvalidWorkflow, match=said):
        check(steps)


def test_parents_come_first_whatever_the_order() -> None:
    steps = [Shape("d", ["b", "c"]), Shape("c", [], ["a"]), Shape("b", ["a"]), Shape("a")]
    keys = [step.key for step in check(steps)]
    assert all(keys.index(parent) < keys.index(step.key) for step in steps for parent in step.parents)


def test_old_steps_are_known_and_their_keys_taken() -> None:
    assert check([Shape("b", ["a"])], {"a"}.__contains__)
    with pytest.raises(InvalidWorkflow, match="two steps named a"):
        check([Shape("a")], {"a"}.__contains__)


def test_only_results_of_ancestors_can_be_used() -> None:
    line = [Shape("a"), Shape("b", ["a"]), Shape("c", [], ["b"], ["a", "b"])]
    assert list(foreign_references(line)) == []
    ((step, key, beyond),) = foreign_references([Shape("a"), Shape("b", ["old"], (), ["a"])])
    assert (step.key, key, beyond) == ("b", "a", {"old"})


def test_thousands_of_steps_may_use_the_result_of_the_first() -> None:
    line = [Shape("0"), *(Shape(str(n), [str(n - 1)], (), ["0"]) for n in range(1, 20_000))]
    assert list(foreign_references(line)) == []
    (found,) = foreign_references([*line, Shape("alone", ["x"], (), ["0"])])
    assert (found[0].key, found[1:]) == ("alone", ("0", {"x"}))


def test_a_step_begins_by_what_its_parents_are() -> None:
    known: Any = {"good": "succeeded", "bad": "failed", "busy": "running"}
    steps = [
        Shape("ready", ["good"], ["bad"]),
        Shape("gate", ["good"], gate=True),
        Shape("doomed", ["bad", "good"]),
        Shape("waits", ["bad", "busy"]),
        Shape("too", ["doomed"]),
        Shape("anyway", [], ["doomed"]),
    ]
    assert initial_states(steps, known) == {
        "ready": InitialState("ready", 0, 0),
        "gate": InitialState("open", 0, 0),
        "doomed": InitialState("canceled", 0, 1, "after bad, which failed"),
        "waits": InitialState("waiting", 1, 1),
        "too": InitialState("canceled", 0, 1, "after doomed, which was canceled"),
        "anyway": InitialState("ready", 0, 0),
    }
    initial = initial_states(steps, known, canceled=True)
    assert {begins.state for begins in initial.values()} == {"canceled"}


@pytest.mark.parametrize(
    ("counts", "canceling", "status"),
    [
        ((1, 1, 1, 1), False, "running"),
        ((1, 0, 1, 1), False, "open"),
        ((0, 0, 0, 1), False, "failed"),
        ((0, 0, 0, 1), True, "canceled"),
        ((0, 0, 0, 0), False, "succeeded"),
        ((0, 0, 0, 0), True, "succeeded"),
    ],
)
def test_the_status_follows_from_the_counts(counts: tuple[int, ...], canceling: bool, status: str) -> None:
    waiting, active, opened, spoiled = counts
    assert Tally("w", "running", waiting, active, opened, spoiled, canceling).settled() == status


def test_what_is_requeued() -> None:
    steps: Any = {
        "a": ("succeeded", False),
        "b": ("failed", False),
        "c": ("canceled", True),
        "d": ("succeeded", False),
        "e": ("canceled", False),
    }
    edges = [("a", "b"), ("b", "c"), ("c", "d")]
    assert requeued(steps, edges, "all") == set(steps)
    assert requeued(steps, edges, "failed") == {"b", "e"}
    assert requeued(steps, edges, "following") == {"b", "c", "d", "e"}
    # What failed was requeued alone: those that it doomed still follow it.
    steps["b"], steps["e"] = ("succeeded", False), ("succeeded", False)
    assert requeued(steps, edges, "failed") == set()
    assert requeued(steps, edges, "following") == {"c", "d"}


def test_a_cascade_goes_ten_thousand_steps_down_and_stops_where_an_end_is_enough() -> None:
    n = 10_000
    steps = [Waiting(f"s{i}", f"s{i}", False, int(i > 0), int(i == 0)) for i in range(n)]
    edges = [
        Edge(f"s{i}", f"s{i - 1}", "after" if i < n - 1 else "after_done", f"s{i - 1}", "waiting")
        for i in range(1, n)
    ]
    edges.append(Edge("s0", "root", "after", "root", "failed"))
    fates = {fate.id: fate for fate in cascade(["s0"], steps, edges)}
    assert len(fates) == n
    assert (fates["s0"].state, fates["s0"].reason) == ("canceled", "after root, which failed")
    assert fates["s9998"].reason == "after s9997, which was canceled"
    assert (fates["s9999"].state, fates["s9999"].reason) == ("ready", None)


@st.composite
def graphs(draw: st.DrawFn, most: int = 40) -> tuple[list[Shape], set[str], random.Random]:
    rng = random.Random(draw(st.integers(0, 2**32)))
    shapes: list[Shape] = []
    for i in range(rng.randint(1, most)):
        parents = rng.sample(range(i), min(i, rng.randint(0, 3)))
        modes = {f"s{parent}": rng.random() < 0.7 for parent in parents}
        after, done = ([key for key, needed in modes.items() if needed is want] for want in (True, False))
        shapes.append(Shape(f"s{i}", after, done))
    return shapes, {step.key for step in shapes if rng.random() < 0.25}, rng


class Machine:
    """The rules alone: what the ledger does with them, in memory, one end after the other."""

    def __init__(self, shapes: Sequence[Shape]) -> None:
        self.shapes = {step.key: step for step in shapes}
        self.state: dict[str, Any] = {}
        self.pending: dict[str, int] = {}
        self.unsatisfied: dict[str, int] = {}
        for key, begins in initial_states(check(shapes), {}).items():
            self.state[key], self.pending[key], self.unsatisfied[key], _ = begins

    def end(self, key: str, state: str) -> None:
        self.state[key] = state
        doomed = []
        for child in self.shapes.values():
            if key in child.parents and self.state[child.key] == "waiting":
                self.pending[child.key] -= 1
                self.unsatisfied[child.key] += key in child.after and state != "succeeded"
                if not self.pending[child.key]:
                    if self.unsatisfied[child.key]:
                        doomed.append(child.key)
                    else:
                        self.state[child.key] = "ready"
        waiting = [k for k, s in self.state.items() if s == "waiting"]
        steps = [Waiting(k, k, False, self.pending[k], self.unsatisfied[k]) for k in waiting]
        edges = [
            Edge(
                k,
                parent,
                "after" if parent in self.shapes[k].after else "after_done",
                parent,
                self.state[parent],
            )
            for k in waiting
            for parent in self.shapes[k].parents
        ]
        for fate in cascade(doomed, steps, edges):
            self.state[fate.id], self.pending[fate.id] = fate.state, fate.pending
            self.unsatisfied[fate.id] = fate.unsatisfied


@given(graphs())
def test_every_order_of_ends_comes_to_what_the_reference_says(drawn: Any) -> None:
    shapes, fails, rng = drawn
    machine = Machine(shapes)
    while ready := [key for key, state in machine.state.items() if state == "ready"]:
        key = rng.choice(ready)
        ended = [machine.state[parent] for parent in machine.shapes[key].parents]
        assert all(state in ("succeeded", "failed", "canceled") for state in ended)
        machine.end(key, "failed" if key in fails else "succeeded")
    assert machine.state == reference(check(shapes), fails)
