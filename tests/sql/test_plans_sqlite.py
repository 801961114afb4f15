"""Plans of the hot statements on 200 000 rows of SQLite: none reads the backlog, whatever the statistics say."""

from __future__ import annotations

import re

import pytest

from tests.sql import backlog
from tests.sql.conftest import LARGE, SMALL
from tests.sql.plans_sqlite import Costs

pytestmark = pytest.mark.xdist_group("plans on sqlite")

HOT = backlog.hot()
MOST_STEPS = 500
"""For each row a statement is about."""

# One jump to the first queue; all that runs.
SCANS = {"claim_jobs": "perdure_job_claim", "find_orphans": "perdure_job_running"}
# At most n rows of each group; what one worker runs; all that runs.
SORTS = {"claim_jobs", "list_running", "find_orphans"}


@pytest.mark.parametrize("name", HOT)
def test_no_statement_scans_the_jobs(name: str, sqlite_costs: Costs) -> None:
    scan = re.compile(r"SCAN (perdure_\w+|[a-z])\b(?! VIRTUAL)(?:.* USING (?:COVERING )?INDEX (\w+))?")
    for condition, plans in sqlite_costs.items():
        scans = [found for line in plans[name].lines if (found := scan.match(line))]
        wrong = [found[0] for found in scans if found[2] != SCANS.get(HOT[name].statement, "")]
        assert wrong == [], f"{condition}: {plans[name].lines}"


@pytest.mark.parametrize("name", [name for name, hot in HOT.items() if hot.statement not in SORTS])
def test_no_statement_sorts(name: str, sqlite_costs: Costs) -> None:
    for condition, plans in sqlite_costs.items():
        assert not any("TEMP B-TREE" in line for line in plans[name].lines), f"{condition}: {plans[name].lines}"


@pytest.mark.parametrize("name", HOT)
def test_a_statement_costs_what_it_is_about(name: str, sqlite_costs: Costs) -> None:
    for condition, plans in sqlite_costs.items():
        assert plans[name].steps <= MOST_STEPS * HOT[name].n, f"{condition}: {plans[name]}"


@pytest.mark.parametrize("statistics", ["none", "stale"])
@pytest.mark.parametrize("name", HOT)
def test_ten_times_the_backlog_costs_the_same(name: str, statistics: str, sqlite_costs: Costs) -> None:
    small, large = (sqlite_costs[statistics, size][name].steps for size in (SMALL, LARGE))
    assert large <= 1.05 * small, f"{small} steps became {large}"
