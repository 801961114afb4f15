"""Steps on their way into a workflow that runs."""

from __future__ import annotations

import msgspec

from perdure.model.canonical_workflow import StepRequest
from perdure.model.graph import Shape
from perdure.model.job import NewStep


class NewSteps(msgspec.Struct, frozen=True):
    """Steps that a step adds to its workflow, each as the graph sees it and as it is written."""

    shapes: tuple[Shape, ...]
    steps: tuple[NewStep, ...]
    requests: tuple[StepRequest, ...] = ()
    """The same as they are compared with another append."""
