"""A reference implementation of how a graph of steps must end."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.model.graph import Shape


def reference(shapes: Sequence[Shape], fails: set[str]) -> dict[str, str]:
    """What must come of a graph, parents first, in ten lines."""
    ends: dict[str, str] = {}
    for step in shapes:
        if any(ends[parent] != "succeeded" for parent in step.after):
            ends[step.key] = "canceled"
        else:
            ends[step.key] = "failed" if step.key in fails else "succeeded"
    return ends
