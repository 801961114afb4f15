"""A database to measure claims on, filled by SQL: enqueueing a million jobs would take minutes."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from time import perf_counter
from typing import NamedTuple

import psycopg

from bench.workload import MAX_ATTEMPTS, QUEUE, TASK, TIMEOUT, WORKER
from perdure import App
from perdure.model.job import SECOND, Claimed
from perdure.model.lifecycle import Released

CHUNK = 100_000


class Jobs(NamedTuple):
    """So many jobs alike. ``due`` is in seconds from now; finished ones have succeeded."""

    n: int
    due: int = -3600
    task: str = TASK
    queue: str = QUEUE
    priority: int = 0
    finished: bool = False


_ENQUEUE = """
WITH RECURSIVE series (i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM series WHERE i < {last})
INSERT INTO {job} (id, task, queue, payload, state, priority, max_attempts, timeout, run_at, created_at)
SELECT {id}, '{task}', '{queue}',
       CAST('{{"to":"user@example.com","subject":"' || substr('{subject}', 1 + i % 30) || '"}}' AS {json}),
       'ready', {priority}, {most}, {timeout}, {at}, {at}
  FROM series
"""
SUBJECT = "Welcome aboard, and thank you!"
"""Of which each job has a part: rows of one length would leave the same room in every page."""

_CLAIM = """
UPDATE {job} SET state = 'running', worker = '{worker}', token = 1, attempt = 1, started_at = run_at
 WHERE id BETWEEN {first} AND {last}
"""
_FINISH = """
UPDATE {job} SET state = 'succeeded', worker = NULL, finished_at = run_at, result = '{{"sent":true}}'
 WHERE id BETWEEN {first} AND {last}
"""


class _Dialect(NamedTuple):
    job: str
    id: str
    at: str
    """A moment ``due`` seconds from now, later by a microsecond for each job."""
    now: str
    json: str


_DIALECTS = {
    "sqlite": _Dialect(
        "perdure_job",
        "printf('0190a000-0000-7000-8000-%012x', {i})",
        "(unixepoch() + {due}) * 1000000 + i",
        "(unixepoch() + 1) * 1000000",
        "text",
    ),
    "postgres": _Dialect(
        "perdure.job",
        "('0190a000-0000-7000-8000-' || lpad(to_hex({i}), 12, '0'))::uuid",
        "date_trunc('second', now()) + interval '{due} seconds' + i * interval '1 microsecond'",
        "now()",
        "json",
    ),
}


class FilledDatabase:
    """A migrated database with a worker that claims from it.

    Its commits do not wait for the disk: whatever is in the table, that wait is the same, and hides the rest.
    """

    def __init__(self, url: str) -> None:
        self._app = App(url, synchronous="normal")
        self._app.migrate()
        self._operations = self._app.operations
        self._operations.register(WORKER, name=WORKER, lease=3600 * SECOND)
        self._url = url
        self._dialect = self._app.store.dialect
        self._filled = 0
        self._claimed: list[Claimed] = []

    def fill(self, *kinds: Jobs) -> None:
        """Add jobs, and leave the database as if it had rested since."""
        for jobs in kinds:
            for n in _chunks(jobs.n):
                self._enqueue(jobs, self._filled + 1, self._filled + n)
                if jobs.finished:
                    self._finish(self._filled + 1, self._filled + n)
                self._filled += n
        self._rest(analyze=True)

    def _enqueue(self, jobs: Jobs, first: int, last: int) -> None:
        words = _DIALECTS[self._dialect]
        self._write(
            _ENQUEUE.format(
                first=first,
                last=last,
                job=words.job,
                json=words.json,
                id=words.id.format(i="i"),
                task=jobs.task,
                queue=jobs.queue,
                subject=SUBJECT,
                priority=jobs.priority,
                most=MAX_ATTEMPTS,
                timeout=TIMEOUT,
                at=words.at.format(due=jobs.due),
            )
        )

    def _finish(self, first: int, last: int) -> None:
        """Let them end as others do: where the rows before them were is then room for the next ones."""
        words = _DIALECTS[self._dialect]
        ids = {"first": words.id.format(i=first), "last": words.id.format(i=last)}
        for statement in (_CLAIM, _FINISH):
            self._write(statement.format(job=words.job, worker=WORKER, **ids))
        self._tidy()

    def remove(self, jobs: Jobs) -> None:
        """Remove what is due of such jobs."""
        words = _DIALECTS[self._dialect]
        self._write(
            f"DELETE FROM {words.job} WHERE state = 'ready' AND run_at <= {words.now}"
            f" AND task = '{jobs.task}' AND queue = '{jobs.queue}'"
        )

    def pause(self, queue: str) -> None:
        self._app.pause_queue(queue)

    def claim(self, n: int, *, tasks: list[str], queues: list[str] | None) -> float:
        """Seconds that a claim takes."""
        start = perf_counter()
        self._claimed = self._operations.claim(WORKER, tasks=tasks, n=n, queues=queues)
        return perf_counter() - start

    def take(self, n: int, *, tasks: list[str]) -> list[Claimed]:
        return self._operations.claim(WORKER, tasks=tasks, n=n)

    def give_back(self) -> int:
        """Release what was claimed, and let no dead entry of an index tell of it; return how much it was."""
        jobs, self._claimed = self._claimed, []
        if jobs:
            self._operations.finish([Released(job.lease) for job in jobs])
            self._rest()
        return len(jobs)

    def close(self) -> None:
        self._app.close()

    def _rest(self, *, analyze: bool = False) -> None:
        """What time does by itself: autovacuum on PostgreSQL, a checkpoint on SQLite (nobody analyzes)."""
        self._tidy(analyze=analyze)
        if self._dialect == "postgres":
            # The statement is planned anew after that, once.
            self._operations.claim(WORKER, tasks=["nobody's"], n=1)
        elif analyze:
            self._write("PRAGMA wal_checkpoint(TRUNCATE)")

    def _tidy(self, *, analyze: bool = False) -> None:
        if self._dialect == "postgres":
            self._write(f"VACUUM (INDEX_CLEANUP ON, ANALYZE {analyze}) perdure.job")

    def _write(self, statement: str) -> None:
        if self._dialect == "postgres":
            with psycopg.connect(self._url, autocommit=True) as connection:
                connection.execute(statement.encode())
            return
        path = self._url.removeprefix("sqlite:///")
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute(statement).fetchall()


def _chunks(n: int) -> list[int]:
    return [min(CHUNK, n - start) for start in range(0, n, CHUNK)]
