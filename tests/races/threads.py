"""Threads that start together."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import psycopg

from tests.harness.waiting import until

PATIENCE = 60.0

OTHERS = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""
DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"


def at_once(*acts: Callable[[], Any]) -> list[Any]:
    """Do all of these at the same moment; return what each returned."""
    start = Barrier(len(acts), timeout=PATIENCE)

    def run(act: Callable[[], Any]) -> Any:
        start.wait()
        return act()

    with ThreadPoolExecutor(len(acts)) as pool:
        return [answer.result(PATIENCE) for answer in [pool.submit(run, act) for act in acts]]


def count_deadlocks(url: str) -> int:
    """How many deadlocks PostgreSQL resolved in this database. A connection reports its own when it ends."""
    with psycopg.connect(url, autocommit=True) as connection:
        until(lambda: connection.execute(OTHERS).fetchone() == (0,))
        (number,) = connection.execute(DEADLOCKS).fetchone() or (0,)
        if number:
            print(_deadlocks_in_log(connection))
        return int(number)


def _deadlocks_in_log(connection: psycopg.Connection[Any]) -> str:
    """Who waited for whom: the server's log lies beside its data."""
    (data,) = connection.execute("SHOW data_directory").fetchone() or ("",)
    log = Path(data).parent / f"log-{connection.info.port}"
    found = re.findall(
        r"deadlock detected.*?(?=\n\S*\s*\S* (?:LOG|ERROR|FATAL):|\Z)",
        log.read_text("utf-8", "replace"),
        re.S,
    )
    return "\n".join(found)
