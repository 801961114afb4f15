"""Plans of the hot statements on 200 000 rows of PostgreSQL: custom and generic, with stale and with fresh statistics.

The worst case is a generic plan that was made when the table was almost empty and nothing ran, and is kept.
"""

from __future__ import annotations

import pytest

from tests.sql import backlog
from tests.sql.conftest import LARGE, SMALL
from tests.sql.plans_postgres import Costs

pytestmark = pytest.mark.xdist_group("plans on postgres")

HOT = backlog.hot()
MOST_ROWS, MOST_BLOCKS = 12, 30
"""For each row a statement is about."""


@pytest.mark.parametrize("name", HOT)
def test_no_statement_scans_a_table(name: str, postgres_costs: Costs) -> None:
    for condition, plans in postgres_costs.items():
        scans = [node for node in plans[name].rows if node.startswith(("Seq Scan", "Bitmap Heap Scan"))]
        assert scans == [], condition


@pytest.mark.parametrize("name", HOT)
def test_a_statement_looks_at_few_rows_more_than_it_is_about(name: str, postgres_costs: Costs) -> None:
    for condition, plans in postgres_costs.items():
        assert plans[name].visited <= MOST_ROWS * HOT[name].n, f"{condition}: {plans[name]}"


@pytest.mark.parametrize("name", HOT)
def test_a_statement_touches_few_pages(name: str, postgres_costs: Costs) -> None:
    for condition, plans in postgres_costs.items():
        assert plans[name].blocks <= MOST_BLOCKS * HOT[name].n, f"{condition}: {plans[name]}"


@pytest.mark.parametrize("mode", ["kept generic", "custom"])
@pytest.mark.parametrize("name", HOT)
def test_ten_times_the_backlog_costs_the_same(name: str, mode: str, postgres_costs: Costs) -> None:
    small, large = (postgres_costs[mode, "stale", size][name] for size in (SMALL, LARGE))
    assert large.visited <= small.visited, f"{small} became {large}"
    # A tree grows a level, and what was taken back lies about until a vacuum.
    assert large.blocks <= 2 * small.blocks, f"{small} became {large}"
