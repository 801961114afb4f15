"""Steps to be added to a running workflow."""

from __future__ import annotations

import msgspec

from perdure.model.canonical_workflow import StepRequest
from perdure.model.graph import Shape
from perdure.model.job import NewStep


class NewSteps(msgspec.Struct, frozen=True):
    """Steps of one append: their shapes in the graph, and their rows."""

    shapes: tuple[Shape, ...]
    steps: tuple[NewStep, ...]
    requests: tuple[StepRequest, ...] = ()
    """The same steps as requested, to compare with an earlier append."""
