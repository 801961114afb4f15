"""Counts the rows that are written to each table, by triggers, on either database."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg

from perdure.store.statements import Dialect, render

TABLES = ("job", "key", "attempt", "event", "log", "queue", "task", "worker")
ACTS = ("INSERT", "UPDATE", "DELETE")

_ON_SQLITE = """
CREATE TRIGGER tally_{act}_{table} AFTER {act} ON perdure.{table}
BEGIN INSERT INTO tally VALUES ('{act} {table}'); END
"""
_ON_POSTGRES = """
CREATE TRIGGER tally AFTER {act} ON perdure.{table} FOR EACH ROW EXECUTE FUNCTION tally('{act} {table}')
"""
_FUNCTION = """
CREATE FUNCTION tally() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN INSERT INTO public.tally VALUES (TG_ARGV[0]); RETURN NULL; END $$
"""


class Tally:
    def __init__(self, url: str) -> None:
        self._url = url
        self._dialect: Dialect = "sqlite" if url.startswith("sqlite") else "postgres"
        with self._connect() as connection:
            connection.execute("CREATE TABLE tally (what text)")
            if self._dialect == "postgres":
                connection.execute(_FUNCTION)
            trigger = _ON_SQLITE if self._dialect == "sqlite" else _ON_POSTGRES.replace("tally AFTER", "tally_{act} AFTER")
            for table in TABLES:
                for act in ACTS:
                    connection.execute(render(trigger.format(act=act, table=table), self._dialect))

    def take(self) -> Counter[str]:
        """What was written since the last time."""
        with self._connect() as connection:
            rows = connection.execute("SELECT what FROM tally").fetchall()
            connection.execute("DELETE FROM tally")
        return Counter(what for (what,) in rows)

    @contextmanager
    def _connect(self) -> Iterator[Any]:
        if self._dialect == "postgres":
            with psycopg.connect(self._url, autocommit=True) as connection:
                yield connection
        else:
            path = self._url.removeprefix("sqlite:///")
            with closing(sqlite3.connect(path, isolation_level=None, timeout=10)) as connection_:
                yield connection_
