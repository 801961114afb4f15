"""Counts the rows that are written to each table, by triggers, on either database."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import product
from typing import Any

import psycopg

from perdure.store.statements import Dialect, render

TABLES = (
    "job",
    "key",
    "attempt",
    "event",
    "log",
    "queue",
    "task",
    "worker",
    "leader",
    "workflow",
    "dependency",
    "mutation",
    "act",
    "named_limit",
    "limit_lock",
)
ACTS = ("INSERT", "UPDATE", "DELETE")

_TRIGGER: Mapping[Dialect, str] = {
    "sqlite": """
        CREATE TRIGGER tally_{act}_{table} AFTER {act} ON perdure.{table}
        BEGIN INSERT INTO perdure.tally VALUES ('{act} {table}'); END""",
    "postgres": """
        CREATE TRIGGER tally_{act} AFTER {act} ON perdure.{table}
        FOR EACH ROW EXECUTE FUNCTION perdure.count_row('{act} {table}')""",
}
_FUNCTION = """
CREATE FUNCTION perdure.count_row() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN INSERT INTO perdure.tally VALUES (TG_ARGV[0]); RETURN NULL; END $$
"""


class Tally:
    def __init__(self, url: str) -> None:
        self._url = url
        self._dialect: Dialect = "sqlite" if url.startswith("sqlite") else "postgres"
        self._run("CREATE TABLE perdure.tally (what text)")
        if self._dialect == "postgres":
            self._run(_FUNCTION)
        for table, act in product(TABLES, ACTS):
            self._run(_TRIGGER[self._dialect].format(act=act, table=table))

    def take(self) -> Counter[str]:
        """What was written since the last time."""
        return Counter(what for (what,) in self._run("DELETE FROM perdure.tally RETURNING what"))

    def _run(self, text: str) -> list[tuple[str]]:
        with self._connect() as connection:
            cursor = connection.execute(render(text, self._dialect))
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def _connect(self) -> Iterator[Any]:
        if self._dialect == "postgres":
            with psycopg.connect(self._url, autocommit=True) as connection:
                yield connection
        else:
            path = self._url.removeprefix("sqlite:///")
            with closing(sqlite3.connect(path, isolation_level=None, timeout=10)) as connection_:
                yield connection_
