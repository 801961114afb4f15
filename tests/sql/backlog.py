"""A table as it looks after a year: little work to do among many other rows.

    part                      of the backlog   what a claim must not do with it
    finished                  50 %             read it
    future, higher priority   10 %             walk past it
    future, same, expiring     5 %             walk past it
    future, lower priority     5 %             count it
    unknown, in front         10 %             walk past it: due, but of a task this worker lacks
    paused                    10 %             read it
    deep                      10 %             read more of it than it takes: due, known, in a queue of its own

In front of all that, the same however large the backlog: READY jobs in each of two queues (``default``,
among the unknown; ``clean``, alone), RUNNING jobs of five workers one of whom is gone, EXPIRED jobs that
nobody started in time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from perdure.model.job import SECOND
from perdure.store.statements import Dialect, render
from tests.sql.recorder import DEFINITION

NOW = 1_800_000_000 * SECOND
DAY = 86_400 * SECOND
READY, RUNNING, EXPIRED, WORKERS = 1000, 500, 100, 5
GROUPS = 6
"""Of queue and priority that have ready jobs and are not paused."""

Execute = Callable[[str, Mapping[str, Any]], Any]


class Part(NamedTuple):
    """Rows of one kind. ``number`` begins their ids."""

    number: int
    size: int
    state: str = "ready"
    task: str = "work"
    queue: str = "default"
    priority: int = 0
    run_at: int = NOW - DAY
    expires_at: int | None = None
    token: int = 0


def constant() -> list[Part]:
    return [
        Part(1, READY),
        Part(2, READY, queue="clean"),
        Part(3, RUNNING, state="running", token=1),
        Part(4, EXPIRED, queue="late", expires_at=NOW - DAY),
    ]


def backlog(size: int, *, number: int) -> list[Part]:
    percent = size // 100
    return [
        Part(number + 1, 50 * percent, state="succeeded", token=1),
        Part(number + 2, 10 * percent, priority=9, run_at=NOW + DAY),
        Part(number + 3, 5 * percent, run_at=NOW + DAY, expires_at=NOW + 2 * DAY),
        Part(number + 4, 5 * percent, priority=-9, run_at=NOW + DAY),
        Part(number + 5, 10 * percent, task="legacy", run_at=NOW - 2 * DAY),
        Part(number + 6, 10 * percent, queue="paused", run_at=NOW - 2 * DAY),
        Part(number + 7, 10 * percent, queue="deep"),
    ]


def job_id(part: int, i: int) -> str:
    return f"{part:08x}-0000-7000-8000-{i:012x}"


def fill(execute: Execute, dialect: Dialect, parts: list[Part]) -> None:
    text = render(JOBS.replace("«id»", ID[dialect]).replace("«numbers»", NUMBERS[dialect]), dialect)
    for part in parts:
        execute(text, {**part._asdict(), "now": NOW})


def settle_in(execute: Execute, dialect: Dialect) -> None:
    """All but one of the workers, a paused queue, and the task they know."""
    for n in range(WORKERS - 1):
        execute(render(WORKER, dialect), {"worker": f"worker-{n}", "now": NOW, "later": NOW + DAY})
    execute(render(QUEUE, dialect), {"paused": True})
    execute(render(TASK, dialect), {"now": NOW, "timeout": None, "backoff": DEFINITION.backoff})


ID = {
    "sqlite": "printf('%08x-0000-7000-8000-%012x', :number, i)",
    "postgres": "CAST(lpad(to_hex(CAST(:number AS integer)), 8, '0') || '-0000-7000-8000-'"
    " || lpad(to_hex(i), 12, '0') AS uuid)",
}
NUMBERS = {
    "sqlite": "(WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT :size)"
    " SELECT i FROM n WHERE :size > 0) AS numbers",
    "postgres": "generate_series(1, CAST(:size AS integer)) AS i",
}
JOBS = """
INSERT INTO perdure.job (id, task, queue, payload, state, priority, max_attempts, run_at, expires_at, token,
                         attempt, worker, started_at, finished_at, unique_key, created_at)
SELECT «id», :task, :queue, '{"to": "ann@example.com", "subject": "hello"}', CAST(:state AS text), :priority,
       8, instant(:run_at) + span(i), instant(:expires_at), CAST(:token AS integer), CAST(:token AS integer),
       CASE CAST(:state AS text) WHEN 'running' THEN 'worker-' || (i % 5) END,
       CASE CAST(:token AS integer) WHEN 1 THEN instant(:run_at) END,
       CASE CAST(:state AS text) WHEN 'succeeded' THEN instant(:run_at) END,
       CASE i WHEN 1 THEN 'only-' || CAST(:number AS text) END, instant(:run_at)
  FROM «numbers»
"""
WORKER = """
INSERT INTO perdure.worker (id, name, lease, tasks, slots, started_at, beat_at, expires_at)
VALUES (:worker, :worker, 30000000, '[]', 1, :now, :now, instant(:later))
"""
QUEUE = "INSERT INTO perdure.queue (name, paused) VALUES ('paused', :paused)"
TASK = """
INSERT INTO perdure.task (name, queue, priority, max_attempts, timeout, backoff, synced_at)
VALUES ('work', 'default', 0, 8, :timeout, :backoff, :now)
"""
