"""New steps, written set by set: those a workflow starts with, and those it gets while it runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TypeAlias

from perdure.model.graph import GATE, Birth, Parent, Shape, births
from perdure.model.job import NewStep
from perdure.ops.batch import CHARACTERS, rows_of
from perdure.ops.op import Query

Edges: TypeAlias = tuple[str, list[str], list[str]]
"""A step, those that must have succeeded before it, and those that must have ended."""

STEPS = 5_000
"""Steps per statement: a whole workflow of thousands is a handful of them."""
ALIKE = 100
"""Steps that are worth a statement of their own."""
PARENTS = 32
"""Per row of edges."""


def grow(
    ordered: Sequence[Shape],
    steps: Mapping[str, NewStep],
    known: Mapping[str, Parent],
    *,
    canceled: bool = False,
) -> tuple[list[Query], dict[str, Birth]]:
    """What writes new steps and their edges, and how each of them begins. ``known``: old steps, by their keys."""
    born = births(ordered, {key: parent.state for key, parent in known.items()}, canceled=canceled)
    ids = {key: parent.id for key, parent in known.items()} | {key: step.id for key, step in steps.items()}
    for key, birth in born.items():
        step = steps[key]
        step.state, step.pending, step.unsatisfied, step.reason = birth
    edges = [row for one in ordered for row in _rows(one, ids)]
    return [*_inserts(steps.values()), *_edges(edges)], born


def _rows(step: Shape, ids: Mapping[str, str]) -> Iterator[Edges]:
    """Its edges. Of thousands some at a time: a row of JSON is read anew for each that is in it."""
    child, after, done = (
        ids[step.key],
        [ids[key] for key in step.after],
        [ids[key] for key in step.after_done],
    )
    if len(after) <= PARENTS and len(done) <= PARENTS:
        if after or done:
            yield child, after, done
        return
    for start in range(0, max(len(after), len(done)), PARENTS):
        yield child, after[start : start + PARENTS], done[start : start + PARENTS]


def _inserts(steps: Iterable[NewStep]) -> Iterator[Query]:
    """Many that differ only in key, payload and parents go together, all others one by one in one statement."""
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
            yield Query("insert_alike_steps", {**shared, "first": some[0].id, "steps": rows_of(rows)})
    for some in _portions(others):
        yield Query("insert_steps", {"steps": rows_of(some)})


_SHARED = (
    "workflow_id",
    "task",
    "queue",
    "priority",
    "max_attempts",
    "timeout",
    "delay",
    "run_at",
    "expires_in",
    "expires_at",
    "tenant",
    "tags",
    "meta",
    "parent_job",
)
_kind_of = attrgetter(*_SHARED)


def _kind(step: NewStep) -> object:
    """What steps must have in common; None of one that goes alone."""
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


def _edges(edges: Sequence[Edges]) -> Iterator[Query]:
    """By its first edge a statement knows whether a commit we never heard of wrote them all."""
    for start in range(0, len(edges), STEPS):
        child, after, done = edges[start]
        first = {"parent": (after or done)[0], "child": child}
        yield Query("insert_edges", {**first, "edges": rows_of(edges[start : start + STEPS])})
