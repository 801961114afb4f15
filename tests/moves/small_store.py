"""A small store with rows of every kind, and a way to read all of it without perdure."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import psycopg

from perdure import App, Backoff, Step
from perdure.client.task import SyncTask
from perdure.model.lifecycle import Canceled, Failed, Report, Snoozed, Succeeded, Throttled
from perdure.model.time_text import FIRST
from perdure.ops.report import JobReport, LogLine
from perdure.store.move.side import MOVED
from perdure.store.statements import name_tables, render
from tests.conformance.flow import Flow
from tests.conformance.world import World

ODD: Final = "naïve \U0001f600 %s {} ' \" \\ \t\n\r\x01"
"""A text with everything that is difficult for an encoding or a format."""


def fill(url: str) -> None:
    """Into a new database."""
    app = App(url)
    app.migrate()
    app.close()
    world = World(url)
    try:
        flow = Flow(world)
        _live(flow)
        _flow(flow)
        _by_hand(world)
    finally:
        world.close()


def _live(flow: Flow) -> None:
    world, work = flow.world, flow.work
    keyed = work.using(idempotency_key=ODD, tenant="acme", tags=["a", "ü"], meta={"x": 1.5})
    keyed.enqueue(1, note=ODD)
    work.using(unique_key="only", priority=-5, queue="other").enqueue(2)
    work.using(delay=3600, expires=7200, max_attempts=3, timeout=1.5).enqueue(3)
    work.using(run_at=datetime(2199, 12, 31, 23, 59, 59, 999_999, UTC)).enqueue(4)
    for n in range(8):
        work.using(queue="front", priority=9, idempotency_key=f"n-{n}").enqueue(n)
    world.advance(0.000_001)
    succeeds, fails, again, retries, snoozes, throttles, gives_up, runs = world.claim(8, queues=["front"])
    report = Report(done=1, total=2**53 + 1, message=ODD, stage="half", checkpoint='{"b":  1e16, "a": null}')
    world.operations.report([JobReport(runs.lease, report, [LogLine("info", ODD), LogLine("warning", "")])])
    world.advance(1.234_567)
    world.finish(
        Succeeded(succeeds.lease, '{"z": 1,  "a": 2.0}'),
        Failed(fails.lease, "fatal", code="", message=ODD, trace=ODD),
        Failed(again.lease, "fatal"),
        Failed(retries.lease, "error", code="http.503", message=""),
        Snoozed(snoozes.lease, 5),
        Throttled(throttles.lease),
        Canceled(gives_up.lease, ODD),
    )
    world.app.requeue_job(again.id)
    world.app.cancel_job(work.enqueue(5).id, reason=ODD)
    world.app.set_task("work", enabled=True)
    world.app.pause_queue("slow", resume_at=timedelta(hours=1), reason=ODD, by="ann")
    world.app.queue("mail", concurrency=20, timeout=1.5, backoff=Backoff(codes={ODD: 1}))
    world.app.save_tasks()
    world.app.set_queue("mail", concurrency=5, backoff=None)
    world.app.set_limit(ODD, concurrency=2, by="ann")
    _limits(world)


def _limits(world: World) -> None:
    """A declared limit, an edited one, one that is lifted, and jobs with and without keys."""
    for name, concurrency in (("printer", 2), ("oven", 3), ("press", 1)):
        world.app.limit(name, concurrency=concurrency)
    limited = declare_limited(world)
    world.app.save_tasks()
    world.app.set_limit("oven", concurrency=1)
    world.app.set_limit("press", concurrency=None)
    for key in ("a", "a", ODD, "", "b"):
        limited.using(queue="limited", tenant=key or None).enqueue()


def declare_limited(world: World) -> SyncTask[..., int]:
    """A task with limits of every kind."""
    return world.task(
        "limited", concurrency=1, concurrency_key="{tenant}", limits=["printer", "press"], aliases=["old"]
    )


def _flow(flow: Flow) -> None:
    flow.start(flow.of(a=[], b=["a"], gate=["b"], c=["gate", "~a"], options={"idempotency_key": "w"}))
    started = flow.start(flow.of("open", gate=[]))
    flow.app.append_steps(
        started.id, window="gate", mutation_key="late", steps=[Step("late", flow.work.job(1))]
    )
    done = flow.start(
        flow.of("done", x=[], options={"tenant": "acme", "meta": {"k": ODD}, "unique_key": "u"})
    )
    flow.app.cancel_workflow(done.id, reason="enough")


def _by_hand(world: World) -> None:
    """Values that no method writes, extreme times, and workers that are dead by any clock."""
    world.sql(
        "UPDATE perdure.job SET expires_at = instant(:late) WHERE expires_at IS NOT NULL", late=9 * 10**15 - 1
    )
    world.sql(
        "INSERT INTO perdure.act (at, actor, verb, subject, detail)"
        " VALUES (instant(:at), NULL, 'pause', '', '{ }'), (instant(:at), 'ann', 'x', 'y', NULL)",
        at=FIRST,
    )
    for table in ("event", "log", "act"):
        # The next number is not the last one plus one.
        world.sql(f"DELETE FROM perdure.{table} WHERE id = (SELECT max(id) FROM perdure.{table})")
    end_workers(world)


def end_workers(world: World) -> None:
    """Their leases have ended by any clock."""
    world.sql("UPDATE perdure.worker SET expires_at = beat_at, beat_at = instant(:then)", then=1)
    world.sql("UPDATE perdure.worker SET expires_at = instant(:then)", then=2)


def contents(url: str, schema: str = "perdure") -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table: times as microseconds, ids and JSON as texts; the columns by their names."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
            return {table: _sorted(_rows_of_sqlite(file, table)) for table in MOVED}
    with psycopg.connect(url) as server:
        return {table: _sorted(_rows_of_postgres(server, schema, table)) for table in MOVED}


def run(url: str, sql: str, *, schema: str = "perdure", **params: Any) -> list[tuple[Any, ...]]:
    """A statement of a program that knows nothing of moves."""
    if url.startswith("sqlite"):
        with closing(
            sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, timeout=10)
        ) as file:
            return file.execute(render(sql, "sqlite"), params).fetchall()
    with psycopg.connect(url, autocommit=True) as server:
        cursor = server.execute(render(sql, "postgres", schema).encode(), params)
        return cursor.fetchall() if cursor.description else []


def _rows_of_sqlite(file: sqlite3.Connection, table: str) -> list[tuple[Any, ...]]:
    columns = sorted(
        name for (name,) in file.execute(f"SELECT name FROM pragma_table_info('perdure_{table}')")
    )
    return file.execute(name_tables(f"SELECT {', '.join(columns)} FROM perdure.{table}", "sqlite")).fetchall()


def _rows_of_postgres(server: psycopg.Connection[Any], schema: str, table: str) -> list[tuple[Any, ...]]:
    plain = {
        "timestamp with time zone": "CAST(extract(epoch FROM {}) * 1000000 AS bigint)",
        "boolean": "CAST({} AS integer)",
        "uuid": "CAST({} AS text)",
        "json": "CAST({} AS text)",
    }
    found = server.execute(
        "SELECT column_name, data_type FROM information_schema.columns WHERE table_schema = %s AND table_name = %s",
        (schema, table),
    ).fetchall()
    columns = ", ".join(plain.get(type, "{}").format(name) for name, type in sorted(found))
    return server.execute(
        name_tables(f"SELECT {columns} FROM perdure.{table}", "postgres", schema).encode()
    ).fetchall()


def _sorted(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=repr)
