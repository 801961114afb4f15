"""Every subject of the fuzz: a little of it in each run of the tests, all of it in ``make test-long``."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from perdure import App, cli
from tests.fuzz.commands import COMMANDS
from tests.fuzz.commands import NOT_HERE as NOT_TYPED
from tests.fuzz.explore import explore
from tests.fuzz.ground import Ground
from tests.fuzz.methods import NOT_HERE, VERBS
from tests.fuzz.subjects import SUBJECTS
from tests.test_sync_and_async import METHODS

A_LITTLE = 4


@pytest.mark.parametrize("subject", SUBJECTS)
def test_what_is_passed_is_kept_or_refused(ground: Ground, subject: str) -> None:
    explore(ground, SUBJECTS[subject], A_LITTLE)


@pytest.mark.long
@pytest.mark.parametrize("subject", SUBJECTS)
def test_what_is_passed_is_kept_or_refused_at_length(
    ground: Ground, subject: str, record_property: Callable[[str, object], None]
) -> None:
    one = SUBJECTS[subject]
    count = explore(ground, one, one.share)
    record_property("examples", count)  # tests/conftest.py prints the sum
    assert count >= one.share


def test_all_of_it_is_twenty_thousand_examples() -> None:
    assert 2 * sum(one.share for one in SUBJECTS.values()) >= 20_000


def test_every_verb_of_the_app_is_asked() -> None:
    assert sorted({*VERBS, *NOT_HERE}) == sorted(METHODS[App].split())


def test_every_verb_of_the_command_line_is_typed() -> None:
    assert {*COMMANDS, *NOT_TYPED} == cli.COMMANDS.keys()
