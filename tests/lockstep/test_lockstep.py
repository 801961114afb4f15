"""SQLite, PostgreSQL and a plain model agree on every answer and every row, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.lockstep.machine import Lockstep
from tests.lockstep.pair import open_pair

SHORT = settings(
    max_examples=50,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
LONG = settings(SHORT, max_examples=600, stateful_step_count=60)


@pytest.fixture
def machine(tmp_path: Path, postgres_url: str) -> Iterator[type[Lockstep]]:
    with open_pair(str(tmp_path / "jobs.db"), postgres_url) as both:

        class OnBoth(Lockstep):
            pair = both

        yield OnBoth


def test_both_stores_do_what_the_model_does(machine: type[Lockstep]) -> None:
    run_state_machine_as_test(machine, settings=SHORT)


@pytest.mark.long
def test_both_stores_do_what_the_model_does_for_long(machine: type[Lockstep]) -> None:
    run_state_machine_as_test(machine, settings=LONG)
