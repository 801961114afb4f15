"""Expired jobs are never claimed, and any operation that finds one cancels it."""

from __future__ import annotations

import pytest

from perdure import Workflow
from perdure.model.job import SECOND
from perdure.model.lifecycle import Failed
from perdure.request.times import from_us
from tests.conformance.world import NOON, World, ids


@pytest.fixture(autouse=True, params=["learned", "window first"])
def window(request: pytest.FixtureRequest) -> None:
    """The answers are the same, whichever statement runs first."""
    if request.param == "window first":
        request.getfixturevalue("window_first")


def test_a_claim_cancels_what_it_meets_too_late(world: World) -> None:
    job = world.task().using(expires=10).enqueue()
    world.advance(10)
    assert world.claim(5) == []
    row = world.row(job)
    assert (row.state, row.reason, row.attempt, row.worker) == ("canceled", "expired", 0, None)
    assert (row.started_at, row.finished_at) == (None, NOON + 10 * SECOND)


def test_a_job_is_handed_out_until_it_expires(world: World) -> None:
    job = world.task().using(expires=from_us(NOON + 10)).enqueue()
    world.now += 9
    assert ids(world.claim()) == [job.id]
    world.advance(99)
    assert world.operations.expire() == 0
    assert world.row(job).state == "running", "what was started in time goes on"


def test_the_claim_goes_on_to_those_that_live(world: World) -> None:
    work = world.task()
    dead = [work.using(expires=1, priority=9).enqueue() for _ in range(7)]
    live = [work.enqueue() for _ in range(3)]
    world.advance(1)
    assert ids(world.claim(2)) == ids(live[:2])
    assert ids(world.claim(2)) == ids(live[2:])
    assert {world.row(job).state for job in dead} == {"canceled"}


def test_a_cycle_goes_on_to_those_that_live(world: World) -> None:
    work = world.task()
    for _ in range(3):
        work.using(expires=1, priority=9).enqueue()
    live = [work.enqueue() for _ in range(3)]
    world.advance(1)
    _, jobs = world.operations.cycle(world.worker, [], tasks=["work"], n=2)
    assert ids(jobs) == ids(live[:2])


def test_expire_cancels_the_rest(world: World) -> None:
    work = world.task()
    dead = [work.using(expires=n).enqueue() for n in range(1, 8)]
    alive = work.using(expires=8).enqueue()
    for_ever = work.enqueue()
    world.advance(7)
    world.app.pause_queue("default")
    assert world.operations.expire(page=3) == 7, "more than a page"
    assert world.operations.expire(page=3) == 0
    assert {(world.row(job).state, world.row(job).reason) for job in dead} == {("canceled", "expired")}
    assert world.row(alive).state == world.row(for_ever).state == "ready"


def test_expire_ends_exactly_at_a_full_page(world: World) -> None:
    work = world.task()
    for _ in range(4):
        work.using(expires=0).enqueue()
    assert world.operations.expire(page=2) == 4


def test_a_job_that_waits_for_its_parents_or_is_held_expires_too(world: World) -> None:
    work = world.task()
    waiting, held = work.using(expires=1).enqueue(), work.using(expires=1).enqueue()
    world.sql("UPDATE perdure.job SET state = 'waiting' WHERE id = :id", id=waiting.id)
    world.sql("UPDATE perdure.job SET held = 'limit' WHERE id = :id", id=held.id)
    world.advance(1)
    assert world.operations.expire() == 2


def test_a_job_that_expired_while_it_waited_for_a_retry_says_so(world: World) -> None:
    job = world.task().using(expires=10).enqueue()
    world.attempt(Failed, "error", message="first", delay=20 * SECOND)
    world.advance(15)
    assert world.operations.expire() == 1
    assert [(entry.what, entry.detail.get("reason")) for entry in world.app.job_history(job.id)][-1] == (
        "canceled",
        "expired",
    )


def test_a_requeued_job_no_longer_expires(world: World) -> None:
    job = world.task().using(expires=1).enqueue()
    world.advance(1)
    world.operations.expire()
    assert world.app.requeue_job(job.id) == "requeued"
    world.advance(99)
    assert ids(world.claim()) == [job.id]


def test_a_step_that_expired_stands_in_nobody_s_way(world: World) -> None:
    work = world.task()
    flow = Workflow("flow")
    flow.step("late", work.using(expires=1).job())
    started = world.app.start_workflow(flow)
    live = work.enqueue()
    world.advance(1)
    assert ids(world.claim(2)) == [live.id], "it is left to the sweeper, which decides for those behind it"
    assert [step.state for step in started.steps()] == ["ready"]
    assert world.operations.expire() == 1
    assert [step.state for step in started.steps()] == ["canceled"]
