"""New steps, written set by set: those a workflow starts with, and those it gets while it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from perdure.model.graph import Birth, Parent, Shape, births
from perdure.model.job import NewStep
from perdure.ops.batch import CHARACTERS, rows_of
from perdure.ops.op import Query

STEPS = 5_000
"""Steps per statement: a whole workflow of thousands is a handful of them."""
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
    edges = [
        (ids[one.key], [ids[key] for key in after], [ids[key] for key in done])
        for one in ordered
        for after, done in (
            *((some, ()) for some in _few(one.after)),
            *(((), some) for some in _few(one.after_done)),
        )
    ]
    return [*_inserts([*steps.values()]), *_edges(edges)], born


def _few(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    """Of a step with thousands of parents, some at a time: a row of JSON is read anew for each of them."""
    return (keys[start : start + PARENTS] for start in range(0, len(keys), PARENTS))


def _inserts(steps: Sequence[NewStep]) -> list[Query]:
    queries: list[Query] = []
    start = size = 0
    for end, step in enumerate(steps):
        own = len(step.payload)
        if end > start and (end - start == STEPS or size + own > CHARACTERS):
            queries.append(Query("insert_steps", {"steps": rows_of(steps[start:end])}))
            start, size = end, 0
        size += own
    return [*queries, Query("insert_steps", {"steps": rows_of(steps[start:])})]


def _edges(edges: Sequence[tuple[str, list[str], list[str]]]) -> list[Query]:
    return [
        Query("insert_edges", {"edges": rows_of(edges[start : start + STEPS])})
        for start in range(0, len(edges), STEPS)
    ]
