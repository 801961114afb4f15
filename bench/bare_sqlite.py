"""The work done by SQL written by hand on Python's own sqlite3: the least that can be done for the same rows.

Many rows travel as one JSON object, which takes 40 % less time than ``executemany``; one row as parameters.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from time import time_ns
from typing import Any

import msgspec

from bench.bare_group import GroupCommit
from bench.workload import MAX_ATTEMPTS, QUEUE, RESULT, TASK, TIMEOUT, WORKER, Ids, Mail

INSERT = f"""
INSERT INTO perdure_job (id, task, queue, payload, state, priority, max_attempts, timeout, run_at, created_at)
VALUES (?1, '{TASK}', '{QUEUE}', ?2, 'ready', 0, {MAX_ATTEMPTS}, {TIMEOUT}, ?3, ?3)
"""

INSERT_MANY = f"""
INSERT INTO perdure_job (id, task, queue, payload, state, priority, max_attempts, timeout, run_at, created_at)
SELECT key, '{TASK}', '{QUEUE}', value, 'ready', 0, {MAX_ATTEMPTS}, {TIMEOUT}, ?2, ?2
  FROM json_each(?1)
"""

FINISH = """
UPDATE perdure_job SET state = 'succeeded', worker = NULL, finished_at = ?4, result = ?3
 WHERE id = ?1 AND token = ?2 AND worker IS NOT NULL
"""

FINISH_MANY = """
UPDATE perdure_job SET state = 'succeeded', worker = NULL, finished_at = ?3, result = ?2
  FROM json_each(?1) AS x
 WHERE perdure_job.id = x.key AND token = x.value AND worker IS NOT NULL
"""

CLAIM = f"""
UPDATE perdure_job
   SET state = 'running', worker = '{WORKER}', token = token + 1, attempt = attempt + 1, started_at = ?1
 WHERE rowid IN (SELECT rowid FROM perdure_job INDEXED BY perdure_job_claim
                  WHERE state = 'ready' AND held IS NULL AND queue = '{QUEUE}' AND task = '{TASK}'
                    AND run_at <= ?1
                  ORDER BY priority DESC, run_at, id LIMIT ?2)
RETURNING id, token, task, queue, priority, run_at, run, attempt, max_attempts, timeout, payload, checkpoint,
          tenant, meta, crashes, scheduled_for, workflow_id, step_key, state
"""


class BareSqlite:
    """On a database that perdure has migrated: the same table and indexes, and the same durability."""

    def __init__(self, url: str, *, result: str = RESULT) -> None:
        """``result``: what every job returns, in JSON."""
        self._result = result
        self._connection = sqlite3.connect(
            url.removeprefix("sqlite:///"), isolation_level=None, check_same_thread=False
        )
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("PRAGMA temp_store = MEMORY")
        self._ids = Ids()
        self._encode = msgspec.json.Encoder().encode
        self._claimed: list[tuple[Any, ...]] = []
        self._group = GroupCommit(self.enqueue_many)

    def enqueue(self, mail: Mail) -> None:
        (id,) = self._ids.new(1)
        self._connection.execute(INSERT, (id, self._payload(mail), _now()))

    def enqueue_together(self, mail: Mail) -> None:
        self._group.join(mail)

    def enqueue_many(self, mails: Sequence[Mail]) -> None:
        rows = dict(zip(self._ids.new(len(mails)), map(self._payload, mails), strict=True))
        self._connection.execute(INSERT_MANY, (self._encode(rows).decode(), _now()))

    def cycle(self, n: int) -> int:
        now = _now()
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        if len(self._claimed) == 1:
            id, token, *_ = self._claimed[0]
            assert execute(FINISH, (id, token, self._result, now)).rowcount == 1
        elif self._claimed:
            leases = {job[0]: job[1] for job in self._claimed}
            done = execute(FINISH_MANY, (self._encode(leases).decode(), self._result, now))
            assert done.rowcount == len(self._claimed)
        self._claimed = execute(CLAIM, (now, n)).fetchall()
        execute("COMMIT")
        return len(self._claimed)

    def tidy(self) -> None:
        """SQLite leaves nothing to clean up."""

    def close(self) -> None:
        self._group.close()
        self._connection.close()

    def _payload(self, mail: Mail) -> str:
        to, subject, number = mail
        return self._encode({"to": to, "subject": subject, "number": number}).decode()


def _now() -> int:
    return time_ns() // 1000
