"""What PostgreSQL does for a statement: the plan it has chosen, carried out and counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from perdure.ops.op import Param
from perdure.store import postgres_transaction
from perdure.store.postgres_adapt import Statement
from perdure.store.statements import load
from tests.sql import backlog
from tests.sql.backlog import NOW, Hot

READS = {"get_job", "list_jobs"}
PREPARED = {name: Statement.parse(text) for name, text in load("postgres").items()}


class Plan(NamedTuple):
    """``rows``: how many of the ledger's rows were looked at, by the node that did; ``blocks``: pages touched."""

    rows: Mapping[str, float]
    blocks: int

    @property
    def visited(self) -> float:
        return sum(self.rows.values())


class Connection:
    """A connection that has prepared every statement, and plans them as told."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        for name, statement in PREPARED.items():
            self._connection.execute(f"PREPARE {name} AS ".encode() + statement.text)

    def close(self) -> None:
        self._connection.close()

    def execute(self, text: str, params: Mapping[str, Any] | None = None) -> None:
        self._connection.execute(text.encode(), params)

    def explain(self, hot: Hot, mode: str) -> Plan:
        """Carry a statement out under the store's own settings, then take it back."""
        with self._taken_back():
            kind = "read" if hot.statement in READS else "write"
            self._connection.execute(postgres_transaction._SETTINGS[kind].text)
            self._connection.execute(f"SET LOCAL plan_cache_mode = force_{mode}_plan".encode())
            call = _call(hot.statement, {**hot.params, "now": NOW})
            row = self._connection.execute(sql.SQL("EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) ") + call).fetchone()
        assert row is not None
        top = row[0][0]["Plan"]
        return Plan(dict(_looks(top)), top["Shared Hit Blocks"] + top["Shared Read Blocks"])

    @contextmanager
    def _taken_back(self) -> Iterator[None]:
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("ROLLBACK")


def _call(name: str, params: Mapping[str, Param]) -> sql.Composed:
    given = sql.SQL(", ").join(sql.Literal(params[param]) for param in PREPARED[name].params)
    return sql.SQL("EXECUTE {}({})" if PREPARED[name].params else "EXECUTE {}").format(sql.Identifier(name), given)


def _looks(node: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, float]]:
    """Every node that reads a table, and every sort, with the rows that passed through it."""
    here = f"{path}/{node['Node Type']}"
    if node["Node Type"] == "Sort" or ("Relation Name" in node and node["Node Type"] != "ModifyTable"):
        name = f"{node['Node Type']} {node.get('Relation Name', '')} {node.get('Index Name', '')}".rstrip()
        removed = sum(value for key, value in node.items() if key.startswith("Rows Removed"))
        yield f"{name} {path}", (node["Actual Rows"] + removed) * node["Actual Loops"]
    for i, child in enumerate(node.get("Plans", ())):
        yield from _looks(child, f"{here}.{i}")


Costs = Mapping[tuple[str, str, int], Mapping[str, Plan]]
"""By kind of plan, the statistics behind it, and the size of the backlog."""


def measure(url: str, small: int, large: int) -> Costs:
    """Grow a backlog under statistics from when it was empty and nothing ran; at last take new ones."""
    costs: dict[tuple[str, str, int], Mapping[str, Plan]] = {}
    hot = backlog.hot()
    early = Connection(url)
    early.execute("ALTER TABLE perdure.job SET (autovacuum_enabled = off)")
    backlog.settle_in(early.execute, "postgres")
    backlog.fill(early.execute, "postgres", backlog.backlog(1000, number=100)[:1])
    early.execute("ANALYZE perdure.job")
    for one in hot.values():
        early.explain(one, "generic")
    backlog.fill(early.execute, "postgres", backlog.constant())
    grown = 0
    for size in (small, large):
        backlog.fill(early.execute, "postgres", backlog.backlog(size - grown, number=200 + 100 * bool(grown)))
        grown = size
        costs["kept generic", "stale", size] = {name: early.explain(one, "generic") for name, one in hot.items()}
        costs["custom", "stale", size] = {name: early.explain(one, "custom") for name, one in hot.items()}
    late = Connection(url)
    costs["new generic", "stale", large] = {name: late.explain(one, "generic") for name, one in hot.items()}
    late.execute("ANALYZE perdure.job")
    costs["new generic", "fresh", large] = {name: late.explain(one, "generic") for name, one in hot.items()}
    costs["custom", "fresh", large] = {name: late.explain(one, "custom") for name, one in hot.items()}
    early.close()
    late.close()
    return costs
