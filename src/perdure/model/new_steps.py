"""Steps to be added to a running workflow."""

from __future__ import annotations

import msgspec

from perdure.model.canonical_workflow import StepRequest
from perdure.model.graph import Shape
from perdure.model.job import NewStep


class NewSteps(msgspec.Struct, frozen=True):
    """Steps that a step adds to its workflow: their shapes in the graph, and their rows."""

    shapes: tuple[Shape, ...]
    steps: tuple[NewStep, ...]
    requests: tuple[StepRequest, ...] = ()
    """The same steps, in the form that is compared with other appends."""
