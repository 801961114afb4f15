"""Statistics of a database."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import psycopg

from perdure import App
from perdure.model.coverage import Unserved
from perdure.model.job import SECOND
from perdure.model.lifecycle import Failed, Throttled
from perdure.request.times import from_us
from tests.conformance.world import LEASE, NOON, World


def test_an_empty_database(world: World) -> None:
    stats = world.app.stats()
    assert (stats.at, stats.queues, stats.unserved) == (from_us(NOON), {}, [])
    assert [worker.id for worker in stats.workers] == [world.worker]
    assert stats.database.dialect == world.store.dialect
    assert stats.database.bytes > 50_000
    assert stats.connections.connections > 0


def test_queues_have_counts_and_lag(world: World) -> None:
    work = world.task(backoff=0)
    work.enqueue()
    world.attempt(Failed, "error", delay=60 * SECOND)
    work.using(delay=60).enqueue()
    work.enqueue()
    world.advance(2)
    world.task("play").enqueue()
    world.app.pause_queue("idle", reason="a deploy", by="ann")
    stats = world.app.stats()
    default, idle = stats.queues["default"], stats.queues["idle"]
    assert list(stats.queues) == ["default", "idle"]
    assert default.counts == {"ready": 2, "retrying": 1, "scheduled": 1}
    assert (default.lag, default.oldest_ready) == (2.0, from_us(NOON))
    assert (default.paused, default.cool_until) == (False, None)
    pause = (from_us(world.now), "ann", "a deploy", None)
    assert idle == ({}, 0.0, None, True, None, 0, pause, *world.app.list_queues())
    assert default.pause is None


def test_a_cooling_queue_is_told_for_as_long_as_it_cools(world: World) -> None:
    world.task().enqueue()
    world.attempt(Throttled, 60 * SECOND)
    until = world.app.stats().queues["default"].cool_until
    assert until is not None
    world.now = round(until.timestamp() * SECOND) + SECOND
    assert world.app.stats().queues["default"].cool_until is None


def test_what_nobody_serves_is_named(world: World) -> None:
    work, play = world.task(), world.task("play")
    for task in (work, work.using(queue="slow"), play):
        task.enqueue()
    play.using(delay=60).enqueue()
    world.operations.retire(world.worker)
    world.operations.register("w", name="ann", lease=LEASE, tasks=["work"], queues=["default"])
    assert world.app.stats().unserved == [
        Unserved("default", "play", 1, "task"),
        Unserved("slow", "work", 1, "queue"),
    ]


def test_a_silent_worker_is_no_worker(world: World) -> None:
    world.task().enqueue()
    world.advance(LEASE / SECOND)
    stats = world.app.stats()
    assert stats.workers == []
    assert [lost.lacks for lost in stats.unserved] == ["worker"]


def test_sqlite_tells_its_log(sqlite_url: str) -> None:
    app = App(sqlite_url)
    app.task(name="work")(lambda: None)
    app.enqueue("work")
    stats = app.stats()
    log = Path(sqlite_url.removeprefix("sqlite:///") + "-wal")
    assert stats.database.version == sqlite3.sqlite_version
    assert stats.database.wal_bytes == log.stat().st_size > 0
    app.close()


def test_a_database_in_memory_has_no_log() -> None:
    app = App("sqlite:///:memory:")
    assert app.stats().database.wal_bytes is None
    app.close()


def test_postgresql_tells_a_snapshot_that_is_held(postgres_url: str) -> None:
    app = App(postgres_url)
    assert app.stats().database.oldest_snapshot is None
    with psycopg.connect(postgres_url) as holder:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT pg_sleep(0.05)")
        database = app.stats().database
        assert database.oldest_snapshot is not None
        assert 0.05 <= database.oldest_snapshot < 60
        assert database.dead_rows is not None
    app.close()


def test_postgresql_tells_its_connections(postgres_url: str) -> None:
    app = App(postgres_url)
    assert app.store.facts() == (0, 0, 13, None)
    app.list_jobs()
    assert app.store.facts() == (1, 0, 13, None), "idle"
    with app.store._pool.lend("normal", timeout=1):  # type: ignore[attr-defined]
        assert app.store.facts() == (1, 1, 13, None), "busy"
    app.close()
    assert app.store.facts().connections == 0


async def test_the_async_twins_do_the_same(world: World) -> None:
    job = await world.task().aenqueue()
    assert (await world.app.aexplain_job(job.id)).code == "task_unserved"
    assert (await world.app.astats()).queues["default"].counts == {"ready": 1}
