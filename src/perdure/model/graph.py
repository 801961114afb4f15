"""Workflow graphs: which graphs are valid, when a step may run, and what the end of a step does to other steps.

Every function is pure. Callers read a graph once, let these functions decide, and write many steps per statement.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from perdure.errors import InvalidWorkflow
from perdure.model.job import ENDED, MOST_COUNTED, State

Mode: TypeAlias = Literal["after", "after_done"]
"""What a step requires of a parent: that the parent succeeded, or only that it ended."""
Status: TypeAlias = Literal["running", "open", "succeeded", "failed", "canceled"]
OVER: frozenset[Status] = frozenset(("succeeded", "failed", "canceled"))
Which: TypeAlias = Literal["all", "failed", "following"]
"""Which steps to requeue.

``failed``: the steps that failed or were canceled, except those canceled because of a parent. ``following``: also all
steps after them.
"""

GATE = "(gate)"
"""The task name of a gate, a step that no worker runs."""
GATES = "gates"
"""The queue of gates. No worker serves it."""

MOST_STEPS = 20_000


class Shape(NamedTuple):
    """A step's place in the graph. Parents and references are given by their keys."""

    key: str
    after: Sequence[str] = ()
    after_done: Sequence[str] = ()
    references: Sequence[str] = ()
    gate: bool = False

    @property
    def parents(self) -> list[str]:
        return [*self.after, *self.after_done]


class Parent(NamedTuple):
    """An existing step that new steps depend on."""

    id: str
    state: State


class InitialState(NamedTuple):
    """The state in which a step is inserted. For the counts, see ``Waiting``."""

    state: State
    pending: int
    unsatisfied: int
    reason: str | None = None


class Edge(NamedTuple):
    """A dependency of a waiting step, with the state of the parent."""

    child: str
    parent: str
    mode: Mode
    parent_key: str
    parent_state: State


class Waiting(NamedTuple):
    """A waiting step. ``pending``: how many of its parents have not ended.

    ``unsatisfied``: how many of its parents ended in a state that the step does not accept.
    """

    id: str
    key: str
    gate: bool
    pending: int
    unsatisfied: int


class Fate(msgspec.Struct, frozen=True):
    """The new state and counts of a waiting step. The new state may be ``waiting`` again."""

    id: str
    state: State
    pending: int
    unsatisfied: int
    reason: str | None = None


class Tally(msgspec.Struct):
    """The counts of a workflow's steps by state, read under the workflow's lock.

    Steps that succeeded are not counted.
    """

    id: str
    status: Status
    waiting: int
    active: int
    open: int
    spoiled: int
    """Steps that failed or were canceled."""
    canceling: bool

    def move(self, before: State | None, after: State, n: int = 1) -> None:
        self._count(before, -n)
        self._count(after, n)

    def settled(self) -> Status:
        """The workflow's status.

        While a gate is open, waiting steps do not make the status ``running``: they wait for the gate.
        """
        if self.active:
            return "running"
        if self.open:
            return "open"
        if self.waiting:
            return "running"
        if not self.spoiled:
            return "succeeded"
        return "canceled" if self.canceling else "failed"

    def _count(self, state: State | None, n: int) -> None:
        match state:
            case "waiting":
                self.waiting = _counted(self.waiting, n)
            case "ready" | "running":
                self.active = _counted(self.active, n)
            case "open":
                self.open = _counted(self.open, n)
            case "failed" | "canceled":
                self.spoiled = _counted(self.spoiled, n)
            case _:
                pass


def _counted(number: int, n: int) -> int:
    """The sum, cut to the column's range, so that a count changed by hand cannot prevent the write of an outcome."""
    return min(max(number + n, 0), MOST_COUNTED)


def check(steps: Sequence[Shape], known: Callable[[str], bool] = lambda _: False) -> list[Shape]:
    """Validate the steps and return them, parents first. Raises InvalidWorkflow.

    ``known`` says whether a key belongs to an existing step.
    """
    by_key: dict[str, Shape] = {}
    for step in steps:
        if step.key in by_key or known(step.key):
            raise InvalidWorkflow(f"There are two steps named {step.key}.")
        by_key[step.key] = step
    children: dict[str, list[str]] = {}
    missing: dict[str, int] = {}
    for step in steps:
        missing[step.key] = _check_parents(step, by_key, known, children)
    ordered = [step for step in steps if not missing[step.key]]
    for step in ordered:
        for child in children.get(step.key, ()):
            missing[child] -= 1
            if not missing[child]:
                ordered.append(by_key[child])
    if len(ordered) < len(steps):
        cycle = " → ".join(_cycle(by_key, missing))
        raise InvalidWorkflow(f"These steps wait for one another: {cycle}.")
    return ordered


def foreign_references(ordered: Sequence[Shape]) -> Iterator[tuple[Shape, str, set[str]]]:
    """Yield each reference to a step that is not an ancestor within ``ordered``.

    Each item has the step, the key that it refers to, and the step's nearest ancestors outside ``ordered``. The caller
    must continue the search from these.
    """
    far = {key for step in ordered for key in step.references if key not in step.parents}
    if not far:
        return
    # Each referenced step has a bit, which is passed down from parents to children. Searching upwards from each step
    # would take minutes if thousands of steps used the result of the first step.
    bits = {key: 1 << i for i, key in enumerate(far)}
    above: dict[str, int] = {}
    by_key = {step.key: step for step in ordered}
    for step in ordered:
        seen = 0
        for parent in step.parents:
            seen |= above.get(parent, 0) | bits.get(parent, 0)
        above[step.key] = seen
        for key in step.references:
            if key in bits and not seen & bits[key]:
                beyond = {one for one in ancestry(step.key, by_key) if one not in by_key}
                yield step, key, beyond


def no_ancestor(step: str, key: str) -> InvalidWorkflow:
    return InvalidWorkflow(f"The step {step} uses the result of {key}, which is not one of its ancestors.")


def ancestry(key: str, by_key: Mapping[str, Shape]) -> set[str]:
    """The keys of a step's ancestors. The search ends at steps that ``by_key`` lacks."""
    found: set[str] = set()
    front = [key]
    while front:
        step = by_key.get(front.pop())
        for parent in step.parents if step is not None else ():
            if parent not in found:
                found.add(parent)
                front.append(parent)
    return found


def initial_states(
    ordered: Iterable[Shape], known: Mapping[str, State], *, canceled: bool = False
) -> dict[str, InitialState]:
    """The initial states of new steps, which are given parents first.

    ``known``: the states of existing steps. ``canceled``: whether the workflow was canceled.
    """
    if not known and not canceled:  # no parent has ended
        return {step.key: _first_state(len(step.after) + len(step.after_done), step.gate) for step in ordered}
    states: dict[str, State] = dict(known)
    initial: dict[str, InitialState] = {}
    for step in ordered:
        pending = sum(states[parent] not in ENDED for parent in step.parents)
        spoilers = [one for one in step.after if states[one] in ENDED and states[one] != "succeeded"]
        state: State = "waiting"
        reason = None
        if canceled:
            state, reason = "canceled", "its workflow was canceled"
        elif not pending and spoilers:
            state, reason = "canceled", doom(spoilers[0], states[spoilers[0]])
        elif not pending:
            state = "open" if step.gate else "ready"
        initial[step.key] = InitialState(state, pending, len(spoilers), reason)
        states[step.key] = state
    return initial


@cache
def _first_state(pending: int, gate: bool) -> InitialState:
    return InitialState("waiting" if pending else "open" if gate else "ready", pending, 0)


def doom(parent: str, state: State) -> str:
    """The reason to store with a step that can no longer run."""
    return f"after {parent}, which {'failed' if state == 'failed' else 'was canceled'}"


def cascade(doomed: Iterable[str], steps: Iterable[Waiting], edges: Iterable[Edge]) -> list[Fate]:
    """The fates of the ``doomed`` steps, which can no longer run, and of all steps after them."""
    waiting = {step.id: step for step in steps}
    into: dict[str, list[Edge]] = {}
    out_of: dict[str, list[Edge]] = {}
    for edge in edges:
        into.setdefault(edge.child, []).append(edge)
        out_of.setdefault(edge.parent, []).append(edge)
    fates: dict[str, Fate] = {}
    front = deque(doomed)
    while front:
        id = front.popleft()
        step = waiting[id]
        reached = fates.get(id, Fate(id, "waiting", step.pending, step.unsatisfied))
        fates[id] = msgspec.structs.replace(reached, state="canceled", reason=_why(into[id], fates))
        for edge in out_of.get(id, ()):
            child = waiting[edge.child]
            before = fates.get(child.id, Fate(child.id, "waiting", child.pending, child.unsatisfied))
            after = _one_parent_less(before, child.gate, spoiled=edge.mode == "after")
            fates[child.id] = after
            if not after.pending and after.unsatisfied:
                front.append(child.id)
    return [*fates.values()]


def requeued(
    steps: Mapping[str, tuple[State, bool]], edges: Iterable[tuple[str, str]], which: Which
) -> set[str]:
    """The ids of the steps to run again.

    ``steps``: by id, the state of each step, and whether the step was canceled because of a parent. An edge is a parent
    and a child.
    """
    if which == "all":
        return {*steps}
    chosen = {
        id
        for id, (state, doomed) in steps.items()
        if state == "failed" or (state == "canceled" and (which == "following" or not doomed))
    }
    if which == "failed":
        return chosen
    children: dict[str, list[str]] = {}
    for parent, child in edges:
        children.setdefault(parent, []).append(child)
    front = [*chosen]
    while front:
        for child in children.get(front.pop(), ()):
            if child not in chosen:
                chosen.add(child)
                front.append(child)
    return chosen


def _check_parents(
    step: Shape, steps: Mapping[str, Shape], known: Callable[[str], bool], children: dict[str, list[str]]
) -> int:
    """Add the step to its parents' children. Return how many of its parents are among these steps."""
    seen: set[str] = set()
    here = 0
    for parent in step.parents:
        if parent == step.key:
            raise InvalidWorkflow(f"The step {step.key} waits for itself.")
        if parent in seen:
            raise InvalidWorkflow(f"The step {step.key} names {parent} twice.")
        seen.add(parent)
        if parent in steps:
            children.setdefault(parent, []).append(step.key)
            here += 1
        elif not known(parent):
            raise InvalidWorkflow(
                f"The step {step.key} waits for {parent}, which is not a step of this workflow."
            )
    return here


def _cycle(steps: Mapping[str, Shape], missing: Mapping[str, int]) -> list[str]:
    """Find a cycle by going from parent to parent, starting at any blocked step.

    Return its keys, each parent before its child.
    """
    key = next(key for key, number in missing.items() if number)
    seen: dict[str, None] = {}
    while key not in seen:
        seen[key] = None
        key = next(parent for parent in steps[key].parents if missing.get(parent))
    around = [*seen][[*seen].index(key) :]
    return [key, *reversed(around)]


def _one_parent_less(fate: Fate, gate: bool, *, spoiled: bool) -> Fate:
    pending, unsatisfied = fate.pending - 1, fate.unsatisfied + spoiled
    state: State = "waiting"
    if not pending and not unsatisfied:
        state = "open" if gate else "ready"
    return Fate(fate.id, state, pending, unsatisfied)


def _why(edges: Iterable[Edge], fates: Mapping[str, Fate]) -> str:
    for edge in edges:
        fate = fates.get(edge.parent)
        state = edge.parent_state if fate is None else fate.state
        if edge.mode == "after" and state in ("failed", "canceled"):
            return doom(edge.parent_key, state)
    return "a parent ended in a state that the step does not accept"
