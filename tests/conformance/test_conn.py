"""Verbs inside the caller's own transaction: they commit with it and vanish with it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from perdure.errors import (
    IdempotencyConflict,
    InvalidOption,
    TaskDisabled,
    TaskNotSaved,
    UnknownTask,
    UnsupportedIsolation,
)
from tests.conformance.world import World, ids


@pytest.fixture
def caller(world: World) -> Iterator[Any]:
    """A connection of the caller's own, about to begin a transaction. The tasks are known already."""
    world.task(queue="mail")
    world.app.save_tasks()
    if world.store.dialect == "postgres":
        with closing(psycopg.connect(world.url)) as connection:
            yield connection
    else:
        with closing(sqlite3.connect(world.url.removeprefix("sqlite:///"))) as connection_:
            yield connection_


def test_jobs_and_keys_commit_with_the_caller(world: World, caller: Any) -> None:
    work = world.app.tasks["work"]
    plain = work.using(conn=caller).enqueue(1)
    keyed = work.using(conn=caller, idempotency_key="k", unique_key="u").enqueue(2)
    many = world.app.enqueue_many([work.job(3), work.job(4)], conn=caller)
    named = world.app.enqueue("work", {"n": 5}, conn=caller)
    assert world.count("job") == 0
    caller.commit()
    assert ids(world.claim(9)) == ids([plain, keyed, *many, named])
    assert {job.queue for job in (plain, keyed, *many, named)} == {"mail"}


def test_jobs_and_keys_vanish_with_the_caller(world: World, caller: Any) -> None:
    asked = world.app.tasks["work"].using(idempotency_key="k", unique_key="u")
    gone = asked.using(conn=caller).enqueue(1)
    caller.rollback()
    assert (world.count("job"), world.count("key")) == (0, 0)
    fresh = asked.enqueue(2)
    assert fresh.created
    assert fresh.id != gone.id


def test_a_refusal_leaves_the_transaction_usable(world: World, caller: Any) -> None:
    work = world.app.tasks["work"]
    work.using(idempotency_key="k").enqueue(1)
    kept = work.using(conn=caller).enqueue(1)
    with pytest.raises(IdempotencyConflict):
        work.using(conn=caller, idempotency_key="k").enqueue(2)
    also = work.using(conn=caller).enqueue(3)
    caller.commit()
    assert {kept.id, also.id} <= set(ids(world.app.list_jobs()))
    assert world.count("job") == 3


def test_a_task_that_the_database_has_lost_is_refused_and_known_the_next_time(
    world: World, caller: Any
) -> None:
    work = world.app.tasks["work"]
    world.sql("DELETE FROM perdure.task")
    with pytest.raises(UnknownTask):
        work.using(conn=caller).enqueue(1)
    caller.rollback()
    job = work.using(conn=caller).enqueue(1)
    caller.commit()
    assert ids(world.claim(9)) == [job.id]


def test_a_disabled_task_is_refused_there_too(world: World, caller: Any) -> None:
    world.app.set_task("work", enabled=False)
    with pytest.raises(TaskDisabled):
        world.app.tasks["work"].using(conn=caller).enqueue()
    caller.commit()
    assert world.count("job") == 0


def test_operators_act_inside_it_as_well(world: World, caller: Any) -> None:
    job = world.app.tasks["work"].enqueue()
    assert world.app.cancel_job(job.id, reason="withdrawn", conn=caller) == "canceled"
    assert job.refresh().state == "ready", "not before the caller commits"
    caller.commit()
    assert job.refresh().state == "canceled"
    assert world.app.requeue_job(job.id, conn=caller) == "requeued"
    caller.rollback()
    assert job.refresh().state == "canceled"


def test_a_request_has_no_connection_of_its_own(world: World, caller: Any) -> None:
    with pytest.raises(InvalidOption):
        world.app.tasks["work"].using(conn=caller).job()


def test_a_task_that_cannot_be_written_now_says_what_to_do(world: World, caller: Any) -> None:
    """On SQLite the caller's own transaction holds the lock that the task would need."""
    late = world.task("late")
    caller.execute("UPDATE perdure_task SET queue = queue" if world.store.dialect == "sqlite" else "SELECT 1")
    if world.store.dialect == "sqlite":
        with pytest.raises(TaskNotSaved, match=r"task late is not .* app\.save_tasks\(\)"):
            late.using(conn=caller).enqueue()
        caller.rollback()
        world.app.save_tasks()
    assert late.using(conn=caller).enqueue().created


def test_a_keyed_enqueue_needs_a_snapshot_that_moves(postgres_url: str) -> None:
    """SQLite has no such levels: who writes sees what is committed."""
    world = World(postgres_url)
    work = world.task()
    world.app.save_tasks()
    keyed: list[Any] = [{"idempotency_key": "k"}, {"unique_key": "u"}]
    with closing(psycopg.connect(postgres_url)) as caller:
        for level in (psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE):
            caller.isolation_level = level
            for keys in keyed:
                with pytest.raises(UnsupportedIsolation):
                    work.using(conn=caller, **keys).enqueue()
            assert work.using(conn=caller).enqueue().created
            caller.rollback()
        caller.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        assert all(work.using(conn=caller, **keys).enqueue().created for keys in keyed)
    world.close()
