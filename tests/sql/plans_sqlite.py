"""What SQLite does for a statement: its plan, and the steps of its virtual machine, equal on every computer."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

from perdure.store.statements import load
from tests.sql import backlog
from tests.sql.backlog import NOW
from tests.sql.hot import Hot, hot

HOT = {name: one for name, one in hot().items() if one.statement in load("sqlite")}

STEPS = 50
"""Between two counts."""


class Plan(NamedTuple):
    lines: list[str]
    steps: int


Statistics = list[tuple[Any, ...]]
Costs = Mapping[tuple[str, int], Mapping[str, Plan]]
"""By the statistics behind the plan and the size of the backlog."""


def measure(path: str, small: int, large: int) -> Costs:
    """Grow a backlog, without statistics and with those of an almost empty table; at last take new ones."""
    costs: dict[tuple[str, int], Mapping[str, Plan]] = {}
    with _open(path) as connection:
        backlog.settle_in(connection.execute, "sqlite")
        backlog.fill(connection.execute, "sqlite", backlog.backlog(1000, number=100)[:1])
        stale = _analyze(connection)
        backlog.fill(connection.execute, "sqlite", backlog.constant())
    grown = 0
    for size in (small, large):
        with _open(path) as connection:
            backlog.fill(
                connection.execute, "sqlite", backlog.backlog(size - grown, number=200 + 100 * bool(grown))
            )
        grown = size
        costs["none", size] = _explain_all(path, [])
        costs["stale", size] = _explain_all(path, stale)
    with _open(path) as connection:
        fresh = _analyze(connection)
    costs["fresh", large] = _explain_all(path, fresh)
    return costs


def _analyze(connection: sqlite3.Connection) -> Statistics:
    connection.execute("ANALYZE")
    return connection.execute("SELECT tbl, idx, stat FROM sqlite_stat1").fetchall()


def _explain_all(path: str, statistics: Statistics) -> Mapping[str, Plan]:
    with _open(path) as connection:
        connection.execute("DELETE FROM sqlite_stat1")
        connection.executemany("INSERT INTO sqlite_stat1 VALUES (?, ?, ?)", statistics)
    # Statistics are read when a connection opens.
    with _open(path) as connection:
        return {name: explain(connection, one) for name, one in HOT.items()}


def explain(connection: sqlite3.Connection, one: Hot) -> Plan:
    """Carry a statement out, counting, then take it back."""
    text, params = load("sqlite")[one.statement], {**one.params, "now": NOW}
    lines = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {text}", params)]
    ticks = 0

    def tick() -> None:
        nonlocal ticks
        ticks += 1

    connection.execute("BEGIN")
    connection.set_progress_handler(tick, STEPS)
    connection.execute(text, params).fetchall()
    connection.set_progress_handler(None, 0)
    connection.execute("ROLLBACK")
    return Plan(lines, ticks * STEPS)


@contextmanager
def _open(path: str) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA journal_mode = WAL")
        yield connection
