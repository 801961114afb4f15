"""What is fuzzed, and how much of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from tests.fuzz import arguments, commands, endings, limits, options, rows
from tests.fuzz.explore import Subject
from tests.fuzz.ground import Ground
from tests.fuzz.methods import NOTHING, VERBS, settle


def _asking(verb: str) -> Callable[[Ground, Any], None]:
    def check(ground: Ground, example: tuple[bool, dict[str, Any]]) -> None:
        waits, asked = example
        settled = {option: settle(ground, value) for option, value in asked.items()}
        ground.ask(lambda: ground.call(verb, waits=waits, **settled))

    return check


SUBJECTS: dict[str, Subject] = {
    verb: Subject(st.tuples(st.booleans(), asked), _asking(verb), 2 if asked is NOTHING else 150)
    for verb, asked in VERBS.items()
}
SUBJECTS |= arguments.SUBJECTS | options.SUBJECTS | limits.SUBJECTS
SUBJECTS |= endings.SUBJECTS | rows.SUBJECTS | commands.SUBJECTS
