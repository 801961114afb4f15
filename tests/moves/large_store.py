"""A store as large as one likes, written by SQL alone.

job         a seventh in each state; some with unique keys, tenants, results, traces, progress
key         of every second
attempt     of every fourth, one or two
event, log  of every fifth, one or two
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from typing import Final

import psycopg

from perdure import App
from perdure.store.statements import Dialect, render

NOON: Final = 1_700_000_000_000_000
"""Long ago: the workers of then are not alive."""

ID: Final[Mapping[Dialect, str]] = {
    "sqlite": "printf('018bcfe5-%04x-7000-8000-%012x', i % 65536, i)",
    "postgres": "CAST('018bcfe5-' || lpad(to_hex(i % 65536), 4, '0') || '-7000-8000-' || lpad(to_hex(i), 12, '0')"
    " AS uuid)",
}
NUMBERS: Final[Mapping[Dialect, str]] = {
    "sqlite": "(WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT :size) SELECT i FROM n)",
    "postgres": "generate_series(1, CAST(:size AS integer)) AS i",
}

STATEMENTS: Final = (
    """
INSERT INTO perdure.task (name, queue, priority, max_attempts, backoff, synced_at)
VALUES ('work', 'default', 0, 8, '{"base": 5.0, "cap": 900}', instant(:noon)) RETURNING 1 AS done, :size AS size""",
    """
INSERT INTO perdure.worker (id, name, lease, tasks, slots, started_at, beat_at, expires_at)
VALUES ('gone', 'gone', 30000000, '["work"]', 1, instant(:noon), instant(:noon), instant(:noon))
RETURNING 1 AS done, :size AS size""",
    """
INSERT INTO perdure.job (id, task, queue, tenant, payload, tags, state, priority, run, attempt, max_attempts, timeout,
                         run_at, token, worker, started_at, finished_at, progress_done, progress_total, result, reason,
                         error_kind, error_code, error_message, error_trace, unique_key, created_at)
SELECT «id», 'work', 'queue-' || (i % 5), CASE WHEN i % 4 = 0 THEN 'tenant-' || (i % 100) END,
       CAST('{"to":  "ann' || i || '@example.com", "n": ' || i || '.0}' AS json),
       CASE WHEN i % 10 = 0 THEN CAST('["a", "ü"]' AS json) END,
       CASE i % 7 WHEN 0 THEN 'waiting' WHEN 1 THEN 'ready' WHEN 2 THEN 'running' WHEN 3 THEN 'open'
                  WHEN 4 THEN 'succeeded' WHEN 5 THEN 'failed' ELSE 'canceled' END,
       i % 3, 1 + i % 2, 2, 8, 900000000, instant(:noon) + span(i), i % 5,
       CASE i % 7 WHEN 2 THEN 'gone' END, CASE WHEN i % 7 > 1 THEN instant(:noon) + span(i) END,
       CASE WHEN i % 7 > 3 THEN instant(:noon) + span(i * 2) END,
       CASE i % 7 WHEN 2 THEN 1 END, CASE i % 7 WHEN 2 THEN 3 END,
       CASE i % 7 WHEN 4 THEN CAST('{"b": 1e16,  "a": null}' AS json) END, CASE i % 7 WHEN 6 THEN 'expired' END,
       CASE i % 7 WHEN 5 THEN 'error' END, CASE i % 7 WHEN 5 THEN 'ValueError' END,
       CASE i % 7 WHEN 5 THEN '' END, CASE i % 7 WHEN 5 THEN 'Traceback: \t
  line ' || i END, CASE WHEN i % 20 = 0 THEN 'only-' || i END, instant(:noon) + span(i)
  FROM «numbers»""",
    """
INSERT INTO perdure.key (task, tenant, key, job, request, kept_until)
SELECT 'work', CASE WHEN i % 4 = 0 THEN 'tenant-' || (i % 100) ELSE '' END, 'key-' || i, «id»,
       CAST('{"v":1,"arguments":{}}' AS json), CASE WHEN i % 8 = 0 THEN instant(:noon) END
  FROM «numbers» WHERE i % 2 = 0""",
    """
INSERT INTO perdure.attempt (job, token, run, attempt, kind, code, message, worker, started_at, finished_at, delay,
                             decided_by)
SELECT «id», t, 1, t, 'error', 'http.503', 'no ' || i, 'gone', instant(:noon) + span(i), instant(:noon) + span(i + t),
       5000000, 'task'
  FROM «numbers», (SELECT 1 AS t UNION ALL SELECT 2) AS twice WHERE i % 4 = 0 AND (t = 1 OR i % 8 = 0)""",
    """
INSERT INTO perdure.event (job, run, token, kind, at, detail)
SELECT «id», 1, t, 'stage', instant(:noon) + span(i + t), CASE t WHEN 1 THEN CAST('{"stage": "half"}' AS json) END
  FROM «numbers», (SELECT 1 AS t UNION ALL SELECT 2) AS twice WHERE i % 5 = 0 AND (t = 1 OR i % 10 = 0)
 ORDER BY i % 10, i, t""",
    """
INSERT INTO perdure.log (job, token, level, message, at)
SELECT «id», t, 'info', 'line ' || t || ' of ' || i, instant(:noon) + span(i + t)
  FROM «numbers», (SELECT 1 AS t UNION ALL SELECT 2) AS twice WHERE i % 5 = 0 AND (t = 1 OR i % 10 = 0)
 ORDER BY i % 10, i, t""",
)


def fill(url: str, size: int) -> None:
    """Into a store that is migrated and empty."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
            connection.execute("BEGIN")
            for text in STATEMENTS:
                connection.execute(_spelled(text, "sqlite"), {"noon": NOON, "size": size})
            connection.execute("COMMIT")
        return
    with psycopg.connect(url) as server:
        for text in STATEMENTS:
            server.execute(_spelled(text, "postgres").encode(), {"noon": NOON, "size": size})


def _spelled(text: str, dialect: Dialect) -> str:
    text = text.replace("«id»", ID[dialect]).replace("«numbers»", NUMBERS[dialect])
    return render(text if dialect == "postgres" else text.replace("AS json", "AS text"), dialect)


def make(url: str, size: int) -> None:
    """A new database with such a store."""
    with closing(App(url)) as app:
        app.migrate()
    fill(url, size)
