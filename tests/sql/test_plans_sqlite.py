"""Plans of the hot statements on 200 000 rows of SQLite: none reads the backlog, whatever the statistics say.

One test, because the table is filled once: each check yields what is wrong.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing

from perdure.ops.find import FIRST, find, find_later
from perdure.request.filter import Filter
from perdure.store.store import open_store
from tests.sql.plans_sqlite import HOT, STEPS, Costs, Plan, measure

SMALL, LARGE = 20_000, 200_000

MOST_STEPS = 500
"""For each row a statement is about; 50 to 420 as measured."""

# All that runs; and what a filter may ask for, of which the first page asks for nothing: its steps are counted below.
SCANS = {
    "find_orphans": {"perdure_job_running"},
    "count_limited": {"perdure_job_running"},
    "claim_limited": {"perdure_job_running"},
    "find_jobs": {"perdure_job_claim", "perdure_job_running"},
}
# At most n rows of each group; what one worker runs; all that runs.
SORTS = {
    *("claim_jobs", "list_running", "find_orphans", "find_jobs", "read_jobs"),
    *("count_limited", "claim_limited"),
}

_SCAN = re.compile(r"SCAN (?:perdure_(?:job|key|attempt)|job|j|a|next)\b(?:.* INDEX (\w+))?")


def test_no_hot_statement_reads_the_backlog(sqlite_url: str) -> None:
    store = open_store(sqlite_url)
    store.migrate()
    store.close()
    costs = measure(sqlite_url.removeprefix("sqlite:///"), SMALL, LARGE)
    assert list(scans_and_sorts(costs)) == []
    assert list(costs_beyond_reason(costs)) == []
    assert list(growth(costs)) == []


def test_what_is_not_due_is_not_looked_for_among_what_has_ended(sqlite_url: str) -> None:
    store = open_store(sqlite_url)
    store.migrate()
    store.close()
    retrying = Filter(state="retrying")
    acts_and_counts = next(find(retrying, length=9, n=9)).queries[0]
    assert acts_and_counts.params["through"] == "claim"
    lists = next(find_later(retrying, behind=FIRST, length=9, n=9)).queries[0]
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as connection:
        for query, indexes in ((acts_and_counts, ("claim", "running")), (lists, ("claim",))):
            text = f"EXPLAIN QUERY PLAN {store.statements[query.name]}"
            plan = connection.execute(text, {**query.params, "now": 0}).fetchall()
            scans = [line for *_, line in plan if "SCAN perdure_job" in line]
            assert scans == [f"SCAN perdure_job USING INDEX perdure_job_{name}" for name in indexes]


def scans_and_sorts(costs: Costs) -> Iterator[str]:
    for name, condition, plan in every(costs):
        statement = HOT[name].statement
        for found in filter(None, map(_SCAN.match, plan.lines)):
            if found[1] not in SCANS.get(statement, ()):
                yield f"{name}, {condition}: {found[0]}"
        if statement not in SORTS and any("TEMP B-TREE" in line for line in plan.lines):
            yield f"{name}, {condition}: sorts"


def costs_beyond_reason(costs: Costs) -> Iterator[str]:
    for name, condition, plan in every(costs):
        if plan.steps > MOST_STEPS * HOT[name].n:
            yield f"{name}, {condition}: {plan.steps} steps for {HOT[name].n} rows"


def growth(costs: Costs) -> Iterator[str]:
    """Ten times the backlog costs the same."""
    for statistics in ("none", "stale"):
        for name in HOT:
            small, large = (costs[statistics, size][name].steps for size in (SMALL, LARGE))
            if large > 1.05 * small + 2 * STEPS:
                yield f"{name}, {statistics}: {small} steps became {large}"


def every(costs: Costs) -> Iterator[tuple[str, str, Plan]]:
    for (statistics, size), plans in costs.items():
        for name, plan in plans.items():
            yield name, f"{statistics} statistics, {size} rows", plan
