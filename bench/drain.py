"""Jobs drained by one worker in a process of its own, timed by what it wrote into their rows."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from typing import Any

import psycopg

from bench.filled_database import SUBJECT
from perdure import App
from perdure.request.job import JobRequest

CONCURRENCY = 100
BULK = 1000
WORKER = f"from bench.worker_app import app; raise SystemExit(app.run_worker(burst=True, concurrency={CONCURRENCY}))"

_SPAN = "SELECT count(*), {first}, {last} FROM {job} WHERE id BETWEEN {p} AND {p} AND state = 'succeeded'"


def drain(url: str, jobs: int, *, task: str = "nothing") -> float:
    """Enqueue so many that do nothing, then run them: jobs a second, from the first claim to the last outcome."""
    ids = enqueue(url, jobs, task=task)
    if url.startswith("postgresql"):
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE perdure.job")
    subprocess.run([sys.executable, "-c", WORKER], env={**os.environ, "PERDURE_URL": url}, check=True)
    done, seconds = span(url, min(ids), max(ids))
    assert done == jobs
    return done / seconds


def enqueue(url: str, jobs: int, *, task: str = "nothing") -> list[str]:
    with App(url) as app:
        app.migrate()

        @app.task(name="nothing")
        async def nothing() -> None: ...

        @app.task(name="mail")
        async def mail(to: str, subject: str) -> None: ...

        bulk: list[JobRequest[Any]] = [nothing.job() for _ in range(BULK)]
        if task == "mail":
            bulk = [mail.job("user@example.com", SUBJECT[n % len(SUBJECT) :]) for n in range(BULK)]
        return [job.id for _ in range(0, jobs, BULK) for job in app.enqueue_many(bulk)]


def span(url: str, first: str, last: str) -> tuple[int, float]:
    """How many have ended, and in how many seconds. By their ids: there may be millions of others."""
    if url.startswith("postgresql"):
        text = _SPAN.format(
            first="extract(epoch FROM min(started_at))",
            last="extract(epoch FROM max(finished_at))",
            job="perdure.job",
            p="%s",
        )
        with psycopg.connect(url) as connection:
            row = connection.execute(text.encode(), [first, last]).fetchone()
            assert row is not None
            return int(row[0]), float(row[2] - row[1])
    text = _SPAN.format(first="min(started_at)", last="max(finished_at)", job="perdure_job", p="?")
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection_:
        n, begun, ended = connection_.execute(text, [first, last]).fetchone()
        return int(n), (ended - begun) / 1e6
