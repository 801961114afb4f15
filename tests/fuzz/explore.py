"""Examples of a subject: always the same ones, or others for each PERDURE_TEST_FUZZ_SEED."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import hypothesis
from hypothesis import HealthCheck, Phase

from tests.fuzz.ground import Ground
from tests.fuzz.odd import Values


class Subject(NamedTuple):
    """``check`` is given the ground and an example; ``share``: so many of them in the long run, on each database."""

    examples: Values
    check: Callable[[Ground, Any], None]
    share: int


def explore(ground: Ground, subject: Subject, most: int) -> int:
    """Return how many examples there were."""
    count = 0
    seed = os.environ.get("PERDURE_TEST_FUZZ_SEED")

    @hypothesis.settings(
        max_examples=most,
        derandomize=seed is None,
        database=None,
        deadline=None,
        # The examples are too unusual for Hypothesis to shrink.
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(subject.examples.map(lambda value: Shown(value)))
    def look(example: Shown) -> None:
        nonlocal count
        count += 1
        try:
            subject.check(ground, example.value)
        except BaseException as error:
            error.add_note(f"example: {example!r}")
            raise

    look = look if seed is None else hypothesis.seed(int(seed))(look)
    look()
    return count


class Shown:
    """An example that can be shown, whatever it is."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        try:
            return repr(self.value)[:2000]
        except BaseException as error:
            return f"something whose repr raises {type(error).__name__}"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))
