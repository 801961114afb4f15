"""Regressions: ways in which a job was once lost, duplicated or blocked."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from perdure.app import App
from perdure.errors import InvalidOption
from perdure.model.job import SECOND
from perdure.model.lifecycle import Failed, Released, Report, Snoozed, Succeeded
from perdure.worker.claimer import Batch
from tests.conformance.world import World


@pytest.mark.parametrize("bad", ["{not json", '"half \ud800"', '"nul \0"'])
def test_one_result_that_no_database_takes_stops_no_other(
    world: World, bad: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = world.task()
    jobs = world.app.enqueue_many([task.job() for _ in range(5)])
    claimed = world.claim(5)
    outcomes = [Succeeded(job.lease, bad if n == 2 else "1") for n, job in enumerate(claimed)]
    assert world.finish(*outcomes).refused == []
    assert [world.row(job).state for job in jobs if job is not jobs[2]] == ["succeeded"] * 4
    monkeypatch.setattr("perdure.worker.damaged_rows.KEEP_FOR", 0.0)
    assert world.finish(outcomes[2]).refused == [], "at the latest once it was refused for a minute"
    assert {world.row(job).state for job in jobs} == {"succeeded"}


def test_one_checkpoint_that_no_database_takes_stops_no_other(world: World) -> None:
    task = world.task()
    jobs = world.app.enqueue_many([task.job() for _ in range(3)])
    first, second, third = world.claim(3)
    bad = Succeeded(second.lease, "1", report=Report(checkpoint='"half \ud800"'))
    float_delay: Any = 1.5 * SECOND
    world.finish(Succeeded(first.lease, "1"), bad, Snoozed(third.lease, float_delay))
    assert [world.row(job).state for job in jobs] == ["succeeded", "succeeded", "ready"]


def test_a_twin_that_expired_does_not_answer_for_a_new_request(world: World) -> None:
    task = world.task()
    old = task.using(unique_key="u", expires=5).enqueue()
    world.advance(5)
    new = task.using(unique_key="u").enqueue()
    assert (new.created, new.id != old.id) == (True, True)
    assert (world.row(old).state, world.row(old).reason) == ("canceled", "expired")
    assert world.claim_one().id == new.id


def test_a_twin_that_expired_does_not_hinder_a_requeue(world: World) -> None:
    task = world.task()
    job = task.using(unique_key="u").enqueue()
    job.cancel()
    task.using(unique_key="u", expires=5).enqueue()
    assert job.requeue() == "unique_key_taken"
    world.advance(5)
    assert job.requeue() == "requeued"


def test_a_pile_of_expired_jobs_does_not_hold_up_a_claim(world: World) -> None:
    task = world.task()
    world.app.enqueue_many([task.using(expires=1).job() for _ in range(1200)])
    alive = task.enqueue()
    world.advance(1)
    assert [job.id for job in world.claim(1)] == [alive.id]


def test_an_outcome_is_not_taken_for_another_one_under_its_token(world: World) -> None:
    world.task().enqueue()
    job = world.claim_one()
    assert world.finish(Released(job.lease)).accepted == [job.lease]
    assert world.finish(Failed(job.lease, "fatal", message="late")).refused == [job.lease]
    assert world.finish(Released(job.lease)).accepted == [job.lease]


class Fancy(str):
    """Such as a template engine's safe text."""


def test_a_text_of_a_subclass_is_taken_for_a_text(world: World) -> None:
    job = world.task().using(queue=Fancy("mail"), unique_key=Fancy("u"), tags=[Fancy("a")]).enqueue()
    assert (world.row(job).queue, job.refresh().tags) == ("mail", ["a"])


@pytest.mark.parametrize("odd", ["\ud800", "a\0b", 2**70, []])
def test_a_filter_that_is_no_text_is_refused(world: World, odd: Any) -> None:
    for verb in (world.app.list_jobs, world.app.count_jobs, world.app.oldest_ready):
        with pytest.raises(InvalidOption):
            verb(queue=odd)


def test_a_row_that_somebody_holds_hides_no_other(postgres_world: World) -> None:
    world = postgres_world
    task = world.task()
    held = task.using(priority=5).enqueue()
    free = [task.enqueue().id for _ in range(3)]
    with psycopg.connect(world.url) as connection:
        world.app.cancel_job(held.id, conn=connection)
        assert [job.id for _ in range(3) for job in world.claim(1)] == free
        connection.rollback()
    assert world.claim_one().id == held.id


async def test_finishes_that_wait_for_a_row_do_not_hold_up_the_heartbeat(postgres_world: World) -> None:
    world = postgres_world
    app = App(world.url)
    task = app.task(name="work")(lambda: None)
    await app.aenqueue_many([task.job(), task.job()])
    await app.operations.aregister("w", name="w", lease=30 * SECOND)
    jobs = await app.operations.aclaim("w", tasks=["work"], n=2)
    connection = await psycopg.AsyncConnection.connect(world.url)
    async with connection:
        for job in jobs:
            await app.acancel_job(job.id, conn=connection)
        finishing = [asyncio.create_task(app.operations.afinish([Succeeded(job.lease, "1")])) for job in jobs]
        beat = await app.operations.aheartbeat("w")
        assert beat.live
        assert not any(task.done() for task in finishing)
        await connection.rollback()
    assert [finished.refused for finished in await asyncio.gather(*finishing)] == [[], []]
    await app.aclose()


def test_one_row_that_somebody_holds_stops_no_other_outcome(postgres_world: World) -> None:
    world = postgres_world
    task = world.task()
    jobs = world.app.enqueue_many([task.job() for _ in range(5)])
    claimed = world.claim(5)
    outcomes = [Succeeded(job.lease, "1") for job in claimed]
    with psycopg.connect(world.url) as connection:
        world.app.cancel_job(claimed[2].id, conn=connection)
        others = [outcome.lease for outcome in outcomes if outcome.lease != claimed[2].lease]
        assert world.finish(*outcomes)[:2] == (others, [])
        again, more = world.operations.cycle(world.worker, outcomes[2:3], tasks=["work"], n=5)
        assert (again[:2], more) == (([], []), [])
        connection.rollback()
    assert world.finish(outcomes[2]).accepted == [claimed[2].lease]
    assert {world.row(job).state for job in jobs} == {"succeeded"}


def test_an_outcome_of_a_lost_lease_is_refused_beside_one_that_is_held(postgres_world: World) -> None:
    world = postgres_world
    task = world.task()
    world.app.enqueue_many([task.job() for _ in range(2)])
    lost, kept = world.claim(2)
    world.finish(Released(lost.lease))
    with psycopg.connect(world.url) as connection:
        world.app.cancel_job(kept.id, conn=connection)
        assert world.finish(Succeeded(lost.lease), Succeeded(kept.lease))[:2] == ([], [lost.lease])
        connection.rollback()


def test_rows_that_somebody_holds_leave_the_rest_to_the_next_look(postgres_world: World) -> None:
    world = postgres_world
    task = world.task()
    held = [task.using(priority=5).enqueue() for _ in range(3)]
    free = [task.enqueue().id for _ in range(4)]
    with psycopg.connect(world.url) as connection:
        for job in held:
            world.app.cancel_job(job.id, conn=connection)
        batch = world.operations.claim(world.worker, tasks=["work"], n=5)
        assert ([job.id for job in batch], batch.more) == (free[:2], True)
        batch = world.operations.claim(world.worker, tasks=["work"], n=3)
        assert ([job.id for job in batch], batch.more) == (free[2:], False)
        assert world.operations.claim(world.worker, tasks=["work"], n=3) == []
        connection.rollback()


def test_a_claim_that_meets_too_many_expired_jobs_says_that_there_is_more(world: World) -> None:
    task = world.task()
    world.app.enqueue_many([task.using(expires=1).job() for _ in range(4000)])
    live = task.enqueue()
    world.advance(2)
    batches: list[Batch] = []
    while not batches or batches[-1].more:
        batches.append(world.operations.claim(world.worker, tasks=["work"], n=1))
    assert len(batches) > 1
    assert [job.id for batch in batches for job in batch] == [live.id]
