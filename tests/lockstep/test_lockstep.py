"""SQLite, PostgreSQL and a plain model agree on every answer and every row, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from perdure.worker import claim_window
from tests.lockstep.machine import Lockstep
from tests.lockstep.pair import open_pair

SHORT = settings(
    max_examples=80,
    stateful_step_count=30,
    deadline=None,
    # Not `explain`: it traces every line, from the first example on.
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
    print_blob=True,
    report_multiple_bugs=False,
)
LONG = settings(SHORT, max_examples=300, stateful_step_count=50)


@pytest.fixture
def merging(monkeypatch: pytest.MonkeyPatch) -> None:
    """Force sort joins on the server: rows come back in an arbitrary order."""
    monkeypatch.setenv("PGOPTIONS", "-c enable_nestloop=off -c enable_hashjoin=off")


@pytest.fixture
def machine(tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Lockstep]]:
    # After many full claims PostgreSQL looks only at recent jobs: such a claim may return fewer than there are, and
    # leaves the older ones to the next. The model knows nothing of that.
    monkeypatch.setattr(claim_window, "FULL_STREAK", inf)
    with open_pair(str(tmp_path / "jobs.db"), postgres_url) as both:

        class OnBoth(Lockstep):
            pair = both

        yield OnBoth


@pytest.mark.timeout(600)
def test_both_stores_do_what_the_model_does(machine: type[Lockstep]) -> None:
    run_state_machine_as_test(machine, settings=SHORT)


@pytest.mark.long
@pytest.mark.usefixtures("window_first")
@pytest.mark.timeout(600)
def test_both_stores_do_what_the_model_does_with_the_window_first(machine: type[Lockstep]) -> None:
    run_state_machine_as_test(machine, settings=LONG)


@pytest.mark.long
@pytest.mark.usefixtures("merging")
@pytest.mark.timeout(600)
def test_both_stores_do_what_the_model_does_however_the_server_joins(machine: type[Lockstep]) -> None:
    run_state_machine_as_test(machine, settings=SHORT)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_both_stores_do_what_the_model_does_for_long(machine: type[Lockstep]) -> None:
    run_state_machine_as_test(machine, settings=LONG)
