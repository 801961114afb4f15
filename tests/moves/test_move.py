"""A store with rows of every kind is moved to another database and back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import get_args

import pytest

from perdure import App
from perdure.errors import BlockingCall, InvalidConfig, Refused, SchemaMissing, SchemaNewer, SchemaOutdated
from perdure.model.job import State
from perdure.model.lifecycle import Succeeded
from perdure.move import Moved, abandon, move
from perdure.store.move import move as mover
from perdure.store.move.side import MOVED
from tests.conformance.world import LEASE, World, work
from tests.moves import small_store
from tests.moves.ends import Ends, is_open, refuses


def moved(source: str, target: str, *, target_schema: str | None = None) -> Moved:
    """It must not have been done before."""
    result = move(source, target, target_schema=target_schema)
    assert result is not None
    return result


def test_everything_arrives_as_it_was(ends: Ends) -> None:
    small_store.fill(ends.source)
    before = small_store.contents(ends.source)
    assert [table for table, rows in before.items() if not rows] == [], "a table without rows shows nothing"
    assert {state for (state,) in small_store.run(ends.source, "SELECT state FROM perdure.job")} == {
        *get_args(State)
    }
    result = moved(*ends)
    assert small_store.contents(ends.target) == before == small_store.contents(ends.source)
    assert result.rows == {table: len(rows) for table, rows in before.items()}
    assert all(len(checksum) == 64 for checksum in result.checksums.values())
    assert (is_open(ends.source), is_open(ends.target)) == (False, True)


@pytest.mark.parametrize("kind", ["files", "schemas"])
def test_from_one_database_to_another_of_its_kind(kind: str, tmp_path: Path, postgres_url: str) -> None:
    file, other = f"sqlite:///{tmp_path / 'a.db'}", f"sqlite:///{tmp_path / 'b.db'}"
    source, target = (file, other) if kind == "files" else (postgres_url, postgres_url)
    schema = "perdure" if kind == "files" else 'jobs of "acme" 100 %'
    small_store.fill(source)
    before = small_store.contents(source)
    moved(source, target, target_schema=schema)
    assert small_store.contents(target, schema) == before


def test_there_and_back_tells_the_same_histories(ends: Ends, tmp_path: Path) -> None:
    small_store.fill(ends.source)
    before, first = histories(ends.source), moved(*ends)
    back = f"sqlite:///{tmp_path / 'back.db'}"
    second = moved(ends.target, back)
    assert histories(back) == before == histories(ends.source)
    assert first.checksums == second.checksums


def histories(url: str) -> list[object]:
    with closing(App(url)) as app:
        return [(job.id, job.state, app.job_history(job.id)) for job in app.list_jobs(limit=1000)]


def test_new_rows_are_numbered_after_all_that_ever_were(ends: Ends) -> None:
    small_store.fill(ends.source)
    moved(*ends)
    for table in ("event", "log", "act"):
        small_store.run(ends.source, "SELECT 1")
        assert (
            number(ends.target, table)
            > max(row[columns(table)] for row in small_store.contents(ends.source)[table]) + 1
        )


def columns(table: str) -> int:
    """Where the number stands among the columns, which are in the order of their names."""
    return {"event": 2, "log": 1, "act": 3}[table]


def number(url: str, table: str) -> int:
    """That of a new row."""
    values = {
        "event": "(job, run, token, kind, at) SELECT id, 1, 1, 'x', created_at FROM perdure.job LIMIT 1",
        "log": "(job, token, level, message, at) SELECT id, 1, 'x', 'x', created_at FROM perdure.job LIMIT 1",
        "act": "(at, verb, subject) SELECT created_at, 'x', 'x' FROM perdure.job LIMIT 1",
    }
    ((id,),) = small_store.run(url, f"INSERT INTO perdure.{table} {values[table]} RETURNING id")
    return int(id)


def test_what_was_alive_goes_on_where_it_was_moved_to(ends: Ends) -> None:
    small_store.fill(ends.source)
    ((runs, token),) = small_store.run(
        ends.source, "SELECT id, token FROM perdure.job WHERE state = 'running'"
    )
    moved(*ends)
    with closing(App(ends.target)) as app:
        task = app.task(name="work", backoff=0)(work)
        again = task.using(idempotency_key="n-3", queue="front", priority=9).enqueue(3)
        assert again.created is False
        assert again.id in [job.id for job in app.list_jobs(limit=1000)]
        new = task.enqueue(99)
        small_store.run(
            ends.target, "UPDATE perdure.job SET run_at = created_at WHERE run_at < instant(:x)", x=2 * 10**15
        )
        small_store.run(
            ends.target,
            "UPDATE perdure.queue SET paused = CAST(:no AS boolean)"
            if "postgres" in ends.target
            else "UPDATE perdure.queue SET paused = :no",
            no=False,
        )
        small_store.run(ends.target, "UPDATE perdure.queue SET cool_until = NULL")
        app.run_worker(burst=True)
        assert new.refresh().state == "succeeded"
        states = {job.id: job.state for job in app.list_jobs(limit=1000)}
        assert states[str(runs)] == "succeeded", "its worker is dead: it was rescued"
        assert {*states.values()} <= {"succeeded", "failed", "canceled", "waiting", "open", "ready"}
        ((after,),) = small_store.run(ends.target, f"SELECT token FROM perdure.job WHERE id = '{runs}'")
        assert after > token
    assert small_store.run(ends.source, "SELECT count(*) FROM perdure.job WHERE state = 'running'") == [(1,)]


def test_limits_hold_where_they_were_moved_to(ends: Ends) -> None:
    small_store.fill(ends.source)
    with limited_world(ends.source) as world:
        (runs,) = world.claim(1, queues=["limited"])
        assert runs.tenant == "a"
        small_store.end_workers(world)
    before = limits(ends.source)
    moved(*ends)
    assert limits(ends.target) == before
    with limited_world(ends.target) as world:
        # The job of the key a has slots until it is rescued: of its key, and of the printer.
        (odd,) = world.claim(9, queues=["limited"])
        assert odd.tenant == small_store.ODD
        assert world.claim(9, queues=["limited"]) == []
        world.finish(Succeeded(odd.lease))
        (keyless,) = world.claim(9, queues=["limited"])
        assert keyless.tenant is None
        world.app.set_limit("printer", concurrency=9)
        (other,) = world.claim(9, queues=["limited"])
        assert other.tenant == "b", "the other job of the key a has no slot"
        assert runs.id in world.rescue()
        assert [job.tenant for job in world.claim(9, queues=["limited"])] == ["a"]
        assert [world.app.reset_limit(name) for name in ("oven", "press", "printer")] == [3, 1, 2]
        assert {queue.name: queue.concurrency for queue in world.app.list_queues()}["mail"] == 5
        world.app.reset_queue("mail")
        assert {queue.name: queue.concurrency for queue in world.app.list_queues()}["mail"] == 20


@contextmanager
def limited_world(url: str) -> Iterator[World]:
    """With a worker that no database has seen, and the task whose limits are moved."""
    world = World(url)
    try:
        world.advance(60)
        world.worker = f"worker of {url}"
        world.operations.register(world.worker, name="new", lease=LEASE)
        small_store.declare_limited(world)
        yield world
    finally:
        world.close()


def limits(url: str) -> list[object]:
    with closing(App(url)) as app:
        return [*app.list_limits(), *app.list_queues()]


def test_a_move_that_is_done_is_done(ends: Ends) -> None:
    ends.migrate()
    moved(*ends)
    with closing(App(ends.target)) as app:
        app.pause_queue("q")
    assert move(*ends) is None


def test_large_rows_go_in_small_batches() -> None:
    pages = [[("x" * 1_000_000, n)] for n in range(9)] + [[("", n) for n in range(100)]] * 120
    sizes = [len(batch) for batch in mover._batches(pages)]
    assert sizes == [4, 4, 5001, 5000, 2000]
    assert sum(sizes) == 9 + 12_000


class TestRefusals:
    """Each changes nothing."""

    def test_while_a_worker_lives(self, ends: Ends) -> None:
        ends.migrate()
        with closing(App(ends.source)) as app:
            app.operations.register("w", name="ann:1", lease=60_000_000)
            with pytest.raises(Refused, match=r"ann:1.*Stop all workers") as refusal:
                move(*ends)
            assert refusal.value.code == "move.workers"
            app.pause_queue("q")
            small_store.run(ends.source, "UPDATE perdure.worker SET expires_at = started_at")
        moved(*ends)

    def test_into_a_database_that_is_in_use(self, ends: Ends) -> None:
        ends.migrate()
        with closing(App(ends.target)) as app:
            app.pause_queue("q")
            with pytest.raises(Refused, match="rows in queue") as refusal:
                move(*ends)
            assert refusal.value.code == "move.not_empty"
            app.pause_queue("q")
        assert is_open(ends.source)

    def test_into_itself(self, url: str) -> None:
        with closing(App(url)) as app:
            app.migrate()
        with pytest.raises(Refused, match="the same database"):
            move(url, url)
        assert is_open(url)

    def test_from_one_that_is_gone(self, ends: Ends, tmp_path: Path) -> None:
        ends.migrate()
        moved(*ends)
        third = f"sqlite:///{tmp_path / 'third.db'}"
        with pytest.raises(Refused, match="were moved to") as refusal:
            move(ends.source, third)
        assert refusal.value.code == "move.other"
        with pytest.raises(Refused, match="themselves moved"):
            move(third_with_tables(third), ends.source)
        with pytest.raises(Refused, match="were moved to"):
            abandon(ends.source)
        assert "were moved to" in refuses(ends.source)

    def test_without_tables(self, tmp_path: Path, postgres_url: str) -> None:
        for source in (f"sqlite:///{tmp_path / 'a.db'}", postgres_url):
            with pytest.raises(SchemaMissing):
                move(source, f"sqlite:///{tmp_path / 'b.db'}")
        assert list(tmp_path.iterdir()) == []

    def test_with_another_version_of_the_tables(self, ends: Ends) -> None:
        ends.migrate()
        small_store.run(ends.target, "UPDATE perdure.migration SET version = 99 WHERE version = 1")
        with pytest.raises(SchemaNewer):
            move(*ends)
        small_store.run(ends.source, "DELETE FROM perdure.migration WHERE version > 2")
        with pytest.raises(SchemaOutdated):
            move(*ends)

    def test_in_memory(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidConfig, match="in memory"):
            move("sqlite:///:memory:", f"sqlite:///{tmp_path / 'b.db'}")

    def test_in_an_event_loop(self, ends: Ends) -> None:
        async def call() -> None:
            move(*ends)

        with pytest.raises(BlockingCall, match="to_thread"):
            asyncio.run(call())


def third_with_tables(url: str) -> str:
    with closing(App(url)) as app:
        app.migrate()
    return url


def test_every_table_is_in_the_order_of_what_belongs_together() -> None:
    assert MOVED.index("job") < min(map(MOVED.index, ("key", "attempt", "event", "log", "dependency")))
