"""The work done by SQL written by hand on Python's own sqlite3: the least that can be done for the same rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from time import time_ns

import msgspec

from bench.bare_group import GroupCommit
from bench.workload import MAX_ATTEMPTS, QUEUE, RESULT, TASK, TIMEOUT, WORKER, Ids, Mail

INSERT = f"""
INSERT INTO perdure_job (id, task, queue, payload, state, priority, max_attempts, timeout, run_at, created_at)
VALUES (?, '{TASK}', '{QUEUE}', ?, 'ready', 0, {MAX_ATTEMPTS}, {TIMEOUT}, ?3, ?3)
"""

FINISH = """
UPDATE perdure_job SET state = 'succeeded', worker = NULL, finished_at = ?, result = ?
 WHERE id = ? AND token = ? AND worker IS NOT NULL
"""

CLAIM = f"""
UPDATE perdure_job
   SET state = 'running', worker = '{WORKER}', token = token + 1, attempt = attempt + 1, started_at = ?1
 WHERE rowid IN (SELECT rowid FROM perdure_job INDEXED BY perdure_job_claim
                  WHERE state = 'ready' AND held IS NULL AND queue = '{QUEUE}' AND task = '{TASK}' AND run_at <= ?1
                  ORDER BY priority DESC, run_at, id LIMIT ?2)
RETURNING id, token, task, queue, priority, run_at, run, attempt, max_attempts, timeout, payload, checkpoint,
          tenant, meta, crashes, scheduled_for, workflow_id, step_key, state
"""


class BareSqlite:
    """On a database that perdure has migrated: the same table and indexes. WAL, synchronous=FULL, as perdure sets it."""

    def __init__(self, url: str) -> None:
        self._connection = sqlite3.connect(
            url.removeprefix("sqlite:///"), isolation_level=None, check_same_thread=False
        )
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._ids = Ids()
        self._encode = msgspec.json.Encoder().encode
        self._finished: list[tuple[int, str, str, int]] = []
        self._group = GroupCommit(self.enqueue_many)

    def enqueue(self, mail: Mail) -> None:
        self._connection.execute(INSERT, self._row(mail, _now()))

    def enqueue_together(self, mail: Mail) -> None:
        self._group.join(mail)

    def enqueue_many(self, mails: Sequence[Mail]) -> None:
        now = _now()
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(INSERT, [self._row(mail, now) for mail in mails])
        self._connection.execute("COMMIT")

    def cycle(self, n: int) -> int:
        now = _now()
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        if self._finished:
            done = self._connection.executemany(FINISH, self._finished)
            assert done.rowcount == len(self._finished)
        jobs = execute(CLAIM, (now, n)).fetchall()
        execute("COMMIT")
        self._finished = [(now, RESULT, job[0], job[1]) for job in jobs]
        return len(jobs)

    def tidy(self) -> None:
        """SQLite leaves nothing to clean up."""

    def close(self) -> None:
        self._group.close()
        self._connection.close()

    def _row(self, mail: Mail, now: int) -> tuple[str, str, int]:
        to, subject, number = mail
        payload = self._encode({"to": to, "subject": subject, "number": number})
        return self._ids.new(), payload.decode(), now


def _now() -> int:
    return time_ns() // 1000
