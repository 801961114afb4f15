"""Jobs that are due much later leave the claim's index, and are back before they are due."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.model.job import SECOND
from perdure.ops import set_aside
from perdure.plan.plan import run
from tests.conformance.world import World

MANY = set_aside.FEW + 1


def schedule(world: World, queues: int = MANY, *, delay: float = 3600, n: int = 1) -> list[str]:
    """Jobs in so many queues, n in each."""
    work = world.app.tasks["work"]
    jobs = world.app.enqueue_many(
        [work.using(queue=f"q{i:05}", delay=delay).job() for i in range(queues) for _ in range(n)]
    )
    return [job.id for job in jobs]


def run_set_aside(world: World, **options: int) -> int:
    return run(world.operations.store, world.operations.sweeps.set_aside(**options))


def run_bring_back(world: World, **options: int) -> int:
    return run(world.operations.store, world.operations.sweeps.bring_back(**options))


def aside(world: World) -> int:
    """How many are set aside."""
    return sum(row.held == "later" for row in rows(world))


def rows(world: World) -> list[Any]:
    return [job.row for job in world.app.list_jobs(limit=1000)]


def test_many_idle_queues_are_set_aside_and_a_few_are_not(world: World) -> None:
    world.task()
    schedule(world, set_aside.FEW)
    assert run_set_aside(world) == 0
    schedule(world, MANY)
    assert run_set_aside(world) == aside(world) == set_aside.FEW + MANY
    assert run_set_aside(world) == 0


def test_many_idle_priorities_are_set_aside(world: World) -> None:
    work = world.task()
    due = work.enqueue()
    world.app.enqueue_many([work.using(priority=i, delay=3600).job() for i in range(1, MANY + 1)])
    assert run_set_aside(world) == MANY
    assert world.claim_one().id == due.id


def test_a_queue_with_something_due_soon_is_left_alone(world: World) -> None:
    work = world.task()
    schedule(world)
    work.using(queue="busy").enqueue()
    work.using(queue="soon", delay=set_aside.ASIDE / SECOND).enqueue()
    late = [work.using(queue=queue, delay=3600).enqueue().id for queue in ("busy", "soon")]
    assert run_set_aside(world) == MANY
    assert [world.row(id).held for id in late] == [None, None]


def test_it_goes_on_page_by_page_while_many_are_idle(world: World) -> None:
    world.task()
    schedule(world, MANY + 20)
    assert run_set_aside(world, page=7) == 21
    assert aside(world) == 21


def test_they_are_back_before_they_are_due(world: World) -> None:
    world.task()
    soon, later = schedule(world, delay=100), schedule(world, delay=3600)
    run_set_aside(world)
    world.advance(69)
    assert run_bring_back(world) == 0
    world.advance(1)
    assert run_bring_back(world, page=10) == len(soon)
    assert world.claim(1) == [], "they are not due"
    world.advance(30)
    assert sorted(job.id for job in world.claim(1000)) == sorted(soon)
    assert aside(world) == len(later)


def test_those_that_nobody_brought_back_count_as_ready_and_are_announced(world: World) -> None:
    """All workers were down for an hour."""
    world.task()
    schedule(world)
    run_set_aside(world)
    world.advance(3600)
    assert world.app.count_jobs()["q00000"] == {"ready": 1}
    assert world.app.stats().queues["q00000"].oldest_ready is not None
    assert len(world.app.oldest_ready()) == MANY
    assert world.claim(1) == []
    assert run_bring_back(world) == MANY
    assert len(world.claim(1000)) == MANY


def test_people_see_no_difference(world: World) -> None:
    world.task()
    ids = schedule(world, n=2)
    before = (
        world.app.count_jobs(),
        world.app.stats().queues,
        [*map(str, world.app.list_jobs(state="scheduled"))],
    )
    explained = world.app.explain_job(ids[0])
    tasks = world.app.list_tasks()
    assert run_set_aside(world) == len(ids)
    assert before == (
        world.app.count_jobs(),
        world.app.stats().queues,
        [*map(str, world.app.list_jobs(state="scheduled"))],
    )
    assert world.app.explain_job(ids[0]) == explained
    assert world.app.list_tasks() == tasks
    assert world.app.list_jobs(state="held") == []
    assert world.app.count_jobs_by("queue", state="scheduled") == {f"q{i:05}": 2 for i in range(MANY)}


@pytest.mark.parametrize("many", [False, True])
def test_an_operator_may_run_cancel_and_delete_them(world: World, many: bool) -> None:
    world.task()
    now, canceled, deleted, *_ = schedule(world)
    run_set_aside(world)
    if many:
        assert world.app.run_jobs_now(queue="q00000").counts == {"due_now": 1}
        assert world.app.cancel_jobs(queue="q00001").counts == {"canceled": 1}
        assert world.app.delete_jobs(queue="q00002").counts == {"deleted": 1}
    else:
        assert world.app.run_now(now) == "due_now"
        assert world.app.cancel_job(canceled) == "canceled"
        assert world.app.delete_job(deleted) == "deleted"
    assert world.claim_one().id == now
    world.advance(3600)
    run_bring_back(world)
    assert len(world.claim(1000)) == MANY - 3
    world.app.requeue_job(canceled)
    assert world.claim_one().id == canceled


def test_an_expired_one_is_canceled_by_the_sweeper(world: World) -> None:
    work = world.task()
    schedule(world)
    late = work.using(queue="other", delay=3600, expires=3700).enqueue()
    run_set_aside(world)
    world.advance(4000)
    assert world.operations.expire() == 1
    assert world.row(late).state == "canceled"
