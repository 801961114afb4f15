"""Insert many steps at once: the first steps of a workflow, and steps that are appended while it runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TypeAlias

from msgspec.structs import replace

from perdure.model.graph import GATE, InitialState, Mode, Parent, Shape, initial_states
from perdure.model.job import NewStep, StepOptions
from perdure.ops.batch import CHARACTERS, rows_of
from perdure.ops.op import Query

Edges: TypeAlias = dict[str, list[str]]
"""The ids of each step's parents, by step id."""

STEPS = 5_000
"""Steps per statement. A workflow of thousands of steps takes a handful of statements."""
READY = InitialState("ready", 0, 0)
"""The initial state that a ``NewStep`` has by default."""
ALIKE = 100
"""If at least this many steps have the same options, a separate, compact statement inserts them."""


def insert_steps(
    ordered: Sequence[Shape],
    steps: Mapping[str, NewStep],
    known: Mapping[str, Parent],
    *,
    canceled: bool = False,
) -> tuple[list[Query], dict[str, InitialState]]:
    """The statements that insert steps and their edges, and the initial state of each step.

    ``known``: existing steps by key. ``canceled``: whether the workflow is being canceled.
    """
    initial = initial_states(ordered, {key: parent.state for key, parent in known.items()}, canceled=canceled)
    ids = {key: parent.id for key, parent in known.items()} | {key: step.id for key, step in steps.items()}
    begun = [
        step if initial[key] == READY else replace(step, **initial[key]._asdict())
        for key, step in steps.items()
    ]
    return [*_inserts(begun), *_edges(ordered, ids)], initial


def _inserts(steps: Iterable[NewStep]) -> Iterator[Query]:
    """Statements that insert steps.

    If at least ALIKE steps differ only in key, payload and parents, their statement has the shared values only once.
    """
    groups: dict[object, list[NewStep]] = {}
    for step in steps:
        groups.setdefault(_kind(step), []).append(step)
    others: list[NewStep] = []
    for kind, group in groups.items():
        if kind is None or len(group) < ALIKE:
            others += group
            continue
        shared = {name: getattr(group[0], name) for name in _SHARED}
        for some in _portions(group):
            rows = {step.id: (step.step_key, step.payload, step.pending) for step in some}
            yield Query("insert_steps_same_options", {**shared, "first": some[0].id, "steps": rows_of(rows)})
    for some in _portions(others):
        yield Query("insert_steps", {"steps": rows_of(some)})


_SHARED = ("workflow_id", "task", *StepOptions.__struct_fields__, "parent_job")
_kind_of = attrgetter(*_SHARED)


def _kind(step: NewStep) -> object:
    """The values that all steps of a group share; None for a step that cannot be in a group."""
    plain = step.state in ("ready", "waiting") and not step.unsatisfied and step.task != GATE
    return _kind_of(step) if plain else None


def _portions(steps: Sequence[NewStep]) -> Iterator[Sequence[NewStep]]:
    start = size = 0
    for end, step in enumerate(steps):
        own = len(step.payload)
        if end > start and (end - start == STEPS or size + own > CHARACTERS):
            yield steps[start:end]
            start, size = end, 0
        size += own
    if start < len(steps):
        yield steps[start:]


def _edges(ordered: Iterable[Shape], ids: Mapping[str, str]) -> Iterator[Query]:
    """Statements that insert edges.

    A statement leaves out edges that exist already: an earlier commit may have written them, and its reply was lost.
    On PostgreSQL, a statement checks only its first edge, because either all of its edges exist or none.
    """
    after: Edges = {}
    done: Edges = {}
    for step in ordered:
        if step.after:
            after[ids[step.key]] = [ids[key] for key in step.after]
        if step.after_done:
            done[ids[step.key]] = [ids[key] for key in step.after_done]
    modes: tuple[tuple[Mode, Edges], ...] = (("after", after), ("after_done", done))
    for mode, edges in modes:
        children = [*edges]
        for start in range(0, len(children), STEPS):
            some = {child: edges[child] for child in children[start : start + STEPS]}
            first = {"parent": edges[children[start]][0], "child": children[start]}
            yield Query("insert_edges", {**first, "mode": mode, "edges": rows_of(some)})
