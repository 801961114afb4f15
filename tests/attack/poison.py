"""Values at and beyond the bounds of every column, and a database in which they were written by hand."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import psycopg

from perdure import App, Workflow
from perdure.request.ids import new_id
from perdure.store.statements import Dialect, name_tables

Column = tuple[str, str]
"""A table and a column of it."""

TABLES = (
    *("job", "workflow", "dependency", "attempt", "event", "log", "queue", "task", "worker", "key"),
    *("leader", "mutation", "act"),
)

COUNTED: Sequence[Column] = (("event", "id"), ("log", "id"), ("act", "id"))
"""Columns that the database numbers. After the last number SQLite accepts no further row, and says that it is full."""

MEGABYTES = 9
"""Larger than a claim reads."""

TEXTS: Sequence[str] = (
    *("", "\x1b[31mred", "two\nlines", "\u202eright to left", "x" * 5000, "'; DROP TABLE job; --"),
    *("work", "calm", "(gate)", "running", "unclaimable", "00000000-0000-0000-0000-000000000000"),
)
DOCUMENTS: Sequence[str] = (
    *("null", "[]", "{}", "1", '"x"', '{"n": 1e400}', '{"n": "\\ud800"}', '{"nobody": 1}'),
    *("[" * 3000 + "]" * 3000, '{"n": {"perdure.result": "a"}}', '{"n": ' + "9" * 400 + "}", '{"base": -1}'),
)
BROKEN: Sequence[str] = ("", "{", "NaN", "\x00", "{not json")
"""What only SQLite accepts as a document."""
SMALL = (-(2**15), -1, 0, 1, 2**15 - 1)
INTEGERS = (-(2**31), -1, 0, 1, 2**31 - 2, 2**31 - 1)
LARGE = (-(2**63), -(2**31), -1, 0, 1, 2**31, 2**63 - 2, 2**63 - 1)
TIMES = ("-infinity", "infinity", "4713-01-01 00:00:00 BC", "294276-12-31", "epoch", "9999-12-31 23:59:59Z")
UUIDS = ("00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff")
BYTES = (b"\xff\xfe", b"ok \xc3", b"\xed\xa0\x80")
"""Not UTF-8: only SQLite stores it as a text."""


class Bad(NamedTuple):
    """A value for a column. ``spelling``: its form in a statement."""

    column: Column
    value: Any
    spelling: str = "?"


def columns(connection: Connection) -> Mapping[Column, str]:
    """Every column of every table, and its type."""
    if connection.dialect == "postgres":
        rows = connection.run(
            "SELECT table_name, column_name, data_type FROM information_schema.columns WHERE table_schema = 'perdure'"
        )
        found = {(table, column): kind for table, column, kind in rows}
    else:
        found = {
            (table, row[1]): row[2].lower()
            for table in TABLES
            for row in connection.run(f"PRAGMA table_info(perdure_{table})")
        }
    return {column: kind for column, kind in found.items() if column[0] in TABLES and column not in COUNTED}


def values_for(column: Column, kind: str, dialect: Dialect) -> Iterator[Bad]:
    """The bounds of its type, and values beyond what perdure writes."""
    yield Bad(column, None)
    numbers = {"smallint": SMALL, "integer": LARGE if dialect == "sqlite" else INTEGERS, "bigint": LARGE}
    for values in (numbers.get(kind, ()), TIMES if kind.startswith("timestamp") else ()):
        yield from (Bad(column, value) for value in values)
    if kind == "uuid":
        yield from (Bad(column, value) for value in UUIDS)
    if kind == "boolean":
        yield from (Bad(column, value) for value in (True, False))
    if kind == "json" or (kind == "text" and column[1] in _DOCUMENTS):
        yield from (Bad(column, value) for value in DOCUMENTS)
    if kind == "text":
        yield from (Bad(column, value) for value in TEXTS)
        if dialect == "sqlite":
            yield from (Bad(column, value) for value in BROKEN)
            yield from (Bad(column, value, "CAST(? AS text)") for value in BYTES)


_DOCUMENTS = frozenset(
    (
        "payload",
        "meta",
        "tags",
        "checkpoint",
        "result",
        "backoff",
        "config",
        "redact",
        "detail",
        "request",
        "tasks",
        "queues",
    )
)


class Connection:
    """A person with a database shell."""

    def __init__(self, url: str) -> None:
        self.dialect: Dialect = "sqlite" if url.startswith("sqlite") else "postgres"
        self._connection: Any
        if self.dialect == "sqlite":
            self._connection = sqlite3.connect(
                url.removeprefix("sqlite:///"), isolation_level=None, timeout=30, check_same_thread=False
            )
            self._connection.text_factory = lambda text: text.decode(errors="replace")
        else:
            self._connection = psycopg.connect(url, autocommit=True)

    def run(self, text: str, *params: Any) -> list[tuple[Any, ...]]:
        text = name_tables(text, self.dialect)
        if self.dialect == "postgres":
            text = text.replace("?", "%s")
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(text, params)
            return cursor.fetchall() if cursor.description else []

    def write(self, bad: Bad, where: str, *params: Any) -> bool:
        """Whether the database accepted it, for some row."""
        table, column = bad.column
        text = f"UPDATE perdure.{table} SET {column} = {bad.spelling} WHERE {where}"
        if self.dialect == "postgres":
            text = text.replace("= ? WHERE", f"= CAST(? AS {self._type(bad.column)}) WHERE")
        try:
            self.run(text, bad.value, *params)
        except (sqlite3.Error, psycopg.Error, ValueError, OverflowError):
            return False
        return True

    def _type(self, column: Column) -> str:
        if not hasattr(self, "_types"):
            self._types = columns(self)
        return self._types[column]

    def close(self) -> None:
        self._connection.close()


class Scene:
    """Twenty ordinary jobs and workflows, and others that will be damaged."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.app = App(url, synchronous="normal", lease=5)
        self.work = self.app.task(name="work", queue="work")(_work)
        self.calm = self.app.task(name="calm", queue="calm")(_work)
        self.app.task(name="flaky", queue="work", max_attempts=2, backoff=0.001)(_fail)
        self.app.save_tasks()
        self.connection = Connection(url)
        self.innocents: list[str] = []
        self._ready: list[str] = []

    def close(self) -> None:
        self.connection.close()
        self.app.close()

    def enqueue_innocents(self, n: int = 20) -> None:
        self.innocents += [job.id for job in self.app.enqueue_many([self.calm.job(i) for i in range(n)])]

    def victim(self, kind: str) -> list[str]:
        """The ids of the rows that will be damaged."""
        match kind:
            case "ready":
                if not self._ready:
                    made = self.app.enqueue_many([self._keyed().job(n=1) for _ in range(20)])
                    self._ready = [job.id for job in made]
                return [self._ready.pop()]
            case "flaky":
                return [self.app.tasks["flaky"].enqueue().id]
            case "orphan":
                id = self.work.enqueue(n=1).id
                self.connection.run(
                    "UPDATE perdure.job SET state = 'running', worker = 'nobody', attempt = 1, token = 1, "
                    "started_at = run_at WHERE id = ?",
                    id,
                )
                return [id]
            case "late":
                return [self.work.using(expires=0).enqueue(n=1).id]
            case _:
                flow = Workflow("flow")
                flow.step("a", self.work.job(1))
                flow.gate("g", after=["a"], timeout=0.001)
                flow.step("b", self.work.job(2), after_done=["g"])
                flow.step("c", self.work.job(3), after=["a"])
                started = self.app.start_workflow(flow)
                rows = self.connection.run(
                    "SELECT id FROM perdure.job WHERE workflow_id = ? ORDER BY step_key", started.id
                )
                return [str(id) for (id,) in rows]

    def _keyed(self) -> Any:
        return self.work.using(
            tenant="t", unique_key=new_id(), idempotency_key=new_id(), tags=["x"], meta={"a": 1}
        )

    def poison(self, bad: Bad, ids: Sequence[str], which: int = 0) -> bool:
        """Write the value into rows of these jobs; return whether the database accepted it."""
        table, id = bad.column[0], ids[which % len(ids)]
        if table in ("attempt", "event", "log"):
            self._note(table, id)
        where = {
            "job": "id = ?",
            "workflow": "id = (SELECT workflow_id FROM perdure.job WHERE id = ?)",
            "dependency": "child = ?",
            **dict.fromkeys(("attempt", "event", "log", "key"), "job = ?"),
            "task": "name = (SELECT task FROM perdure.job WHERE id = ?)",
            "queue": "name = (SELECT queue FROM perdure.job WHERE id = ?)",
        }.get(table, "? IS NOT NULL")
        if self.connection.dialect == "postgres" and where == "? IS NOT NULL":
            where = "CAST(? AS text) IS NOT NULL"
        return self.connection.write(bad, where, id)

    def _note(self, table: str, id: str) -> None:
        now = "now()" if self.connection.dialect == "postgres" else "0"
        self.connection.run(
            {
                "attempt": "INSERT INTO perdure.attempt (job, token, run, attempt, kind, finished_at) "
                f"VALUES (?, 77, 1, 1, 'error', {now})",
                "event": f"INSERT INTO perdure.event (job, run, token, kind, at) VALUES (?, 1, 1, 'stage', {now})",
                "log": f"INSERT INTO perdure.log (job, token, level, message, at) VALUES (?, 1, 'info', 'x', {now})",
            }[table],
            id,
        )


KINDS = ("ready", "flaky", "orphan", "late", "flow")


def draw(rng: random.Random, known: Mapping[Column, str], dialect: Dialect) -> tuple[str, Bad, int]:
    """A kind of row, a value for a column, and which of its rows it is written into."""
    column = rng.choice([*known])
    if rng.random() < 0.5:
        column = rng.choice([one for one in known if one[0] == "job"])
    bad = rng.choice([*values_for(column, known[column], dialect)])
    return rng.choice(KINDS), bad, rng.randrange(4)


def _work(n: int = 0) -> int:
    return n


def _fail() -> None:
    raise ValueError("it fails")
