"""What PostgreSQL does for a statement: its actual plan, with counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import psycopg
from psycopg import sql

from perdure.ops.op import Op, Param
from perdure.store.postgres import transaction
from perdure.store.postgres.adapt import Statement
from perdure.store.statements import load
from tests.sql import backlog
from tests.sql.backlog import NOW, Part
from tests.sql.hot import Hot, hot

PAGE = 8192
READS = {"get_job", "find_jobs", "read_jobs"}
EXPLAIN = sql.SQL("EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) ")
PREPARED = {name: Statement.parse(text) for name, text in load("postgres").items()}


class Plan(NamedTuple):
    """How many rows each node of the plan looked at, and how many pages were touched in all."""

    rows: Mapping[str, float]
    pages: int

    @property
    def visited(self) -> float:
        return sum(self.rows.values())


class Connection:
    """A connection that has prepared every statement, and plans them as told."""

    def __init__(self, url: str) -> None:
        # Without psycopg's own prepared statements: to forget them it forgets all.
        self._connection = psycopg.connect(url, autocommit=True, prepare_threshold=None)
        for name, statement in PREPARED.items():
            self._connection.execute(f"PREPARE {name} AS ".encode() + statement.text)

    def close(self) -> None:
        self._connection.close()

    def execute(self, text: str, params: Mapping[str, Any] | None = None) -> psycopg.Cursor[Any]:
        return self._connection.execute(text.encode(), params)

    def explain(self, one: Hot, mode: str) -> Plan:
        """Carry a statement out under the store's own settings, then take it back."""
        reads = one.statement in READS
        with self.taken_back():
            settings = (transaction.READ_SETTINGS if reads else transaction.WRITE_SETTINGS["normal"]).text
            self._connection.execute(settings.replace(b"$1", b"true"))
            if not reads:
                self._connection.execute(f"SET LOCAL plan_cache_mode = force_{mode}_plan".encode())
            call = _call(one.statement, {**one.params, "now": NOW})
            row = self._connection.execute(EXPLAIN + call).fetchone()
        assert row is not None
        top = row[0][0]["Plan"]
        return Plan(dict(_looks(top)), _pages(top))

    def explain_all(self, mode: str) -> Mapping[str, Plan]:
        return {name: self.explain(one, mode) for name, one in hot().items()}

    def log(self, op: Op[Any]) -> int:
        """The bytes of write-ahead log that the first step of an operation takes, without images of pages."""
        return sum(plan["WAL Bytes"] - PAGE * plan["WAL FPI"] for plan in self._plans(op, "WAL"))

    def plan(self, op: Op[Any]) -> Plan:
        """What the first step of an operation does, planned as the store has it planned."""
        self._connection.execute(transaction.WRITE_SETTINGS["normal"].text.replace(b"$1", b"false"))
        tops = list(self._plans(op, "BUFFERS"))
        return Plan(dict(look for top in tops for look in _looks(top)), sum(map(_pages, tops)))

    def _plans(self, op: Op[Any], counted: str) -> Iterator[Mapping[str, Any]]:
        for query in next(op).queries:
            call = _call(query.name, {**query.params, "now": None})
            explain = sql.SQL("EXPLAIN (ANALYZE, {}, FORMAT JSON) ").format(sql.SQL(counted))
            row = self._connection.execute(explain + call).fetchone()
            assert row is not None
            yield row[0][0]["Plan"]

    def fill(self, parts: list[Part]) -> None:
        backlog.fill(self.execute, "postgres", parts)

    @contextmanager
    def taken_back(self) -> Iterator[None]:
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("ROLLBACK")


def _call(name: str, params: Mapping[str, Param]) -> sql.Composed:
    given = sql.SQL(", ").join(sql.Literal(params[param]) for param in PREPARED[name].params)
    return sql.SQL("EXECUTE {}({})" if PREPARED[name].params else "EXECUTE {}").format(
        sql.Identifier(name), given
    )


def _pages(plan: Mapping[str, Any]) -> int:
    """A change that nobody reads is made after all the rest, whose count does not have it."""
    read = set(_names_read(plan))
    apart = (
        part
        for part in plan.get("Plans", ())
        if part["Node Type"] == "ModifyTable" and _name(part) not in read
    )
    return sum(int(part["Shared Hit Blocks"] + part["Shared Read Blocks"]) for part in (plan, *apart))


def _name(part: Mapping[str, Any]) -> str:
    """Of a part of WITH; a change that is the statement itself is read by its caller."""
    return str(part.get("Subplan Name", "")).removeprefix("CTE ")


def _names_read(node: Mapping[str, Any]) -> Iterator[str]:
    """The parts of WITH that are scanned."""
    yield node.get("CTE Name", "")
    for child in node.get("Plans", ()):
        yield from _names_read(child)


def _looks(node: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, float]]:
    """Every node that reads a table, and every sort, with the rows that passed through it."""
    here = f"{path}/{node['Node Type']}"
    if node["Node Type"] == "Sort" or ("Relation Name" in node and node["Node Type"] != "ModifyTable"):
        name = f"{node['Node Type']} {node.get('Relation Name', '')} {node.get('Index Name', '')}".rstrip()
        removed = sum(value for key, value in node.items() if key.startswith("Rows Removed"))
        yield f"{name} {path}", (node["Actual Rows"] + removed) * node["Actual Loops"]
    for i, child in enumerate(node.get("Plans", ())):
        yield from _looks(child, f"{here}.{i}")


Condition: TypeAlias = tuple[str, str, int]
Costs: TypeAlias = Mapping[Condition, Mapping[str, Plan]]
"""By kind of plan, the statistics behind it, and the size of the backlog."""


def measure(url: str, small: int, large: int) -> Costs:
    """Grow a backlog under plans and statistics from before there was any; at last take new ones."""
    costs: dict[Condition, Mapping[str, Plan]] = {}
    early, late = Connection(url), Connection(url)
    backlog.settle_in(early.execute, "postgres")
    costs.update(_from_empty(early, small))
    costs.update(_from_when_nothing_ran(early, small, large))
    costs["new generic", "stale", large] = late.explain_all("generic")
    # With a visibility map, index-only scans look cheap.
    late.execute("VACUUM ANALYZE perdure.job")
    costs["new generic", "fresh", large] = late.explain_all("generic")
    costs["custom", "fresh", large] = late.explain_all("custom")
    early.close()
    late.close()
    return costs


def _from_empty(connection: Connection, size: int) -> Iterator[tuple[Condition, Mapping[str, Plan]]]:
    connection.explain_all("generic")
    connection.fill(backlog.constant() + backlog.backlog(size, number=200))
    yield ("kept generic", "no", size), connection.explain_all("generic")
    connection.execute("TRUNCATE perdure.job")


def _from_when_nothing_ran(
    connection: Connection, small: int, large: int
) -> Iterator[tuple[Condition, Mapping[str, Plan]]]:
    connection.fill(backlog.backlog(1000, number=100)[:1])
    connection.execute("ANALYZE perdure.job")
    connection.explain_all("generic")
    connection.fill(backlog.constant() + backlog.backlog(small, number=200))
    yield ("kept generic", "stale", small), connection.explain_all("generic")
    yield ("custom", "stale", small), connection.explain_all("custom")
    connection.fill(backlog.backlog(large - small, number=300))
    yield ("kept generic", "stale", large), connection.explain_all("generic")
    yield ("custom", "stale", large), connection.explain_all("custom")
