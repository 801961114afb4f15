"""Throttling: the whole queue cools down, longer after each event of the external limiter."""

from __future__ import annotations

from perdure.model.backoff import Backoff
from perdure.model.cool_down import QUIET
from perdure.model.job import SECOND
from perdure.model.lifecycle import Throttled
from perdure.request.times import to_us
from tests.conformance.world import World


def cooling(world: World, name: str = "default") -> tuple[int, float | None]:
    """The exponent of a queue, and for how many more seconds it cools."""
    for queue in world.app.list_queues():
        if queue.name == name:
            until = queue.cool_until
            return queue.throttles, None if until is None else (
                to_us("cool_until", until) - world.now
            ) / SECOND
    return 0, None


def hit(world: World, delay: int | None = 0) -> None:
    world.app.tasks["work"].using(priority=9).enqueue()
    world.attempt(Throttled, delay)


def test_the_exponent_counts_events_of_the_limiter_not_of_its_victims(world: World) -> None:
    work = world.task()
    world.app.enqueue_many([work.job() for _ in range(4)])
    jobs = world.claim(4)
    world.finish(Throttled(jobs[0].lease, 0), Throttled(jobs[1].lease, 0))
    assert cooling(world) == (1, 5)
    world.advance(1)
    world.finish(Throttled(jobs[2].lease, 60 * SECOND))
    assert cooling(world) == (1, 4), "a sibling that hit the same limit"
    world.advance(4)
    world.finish(Throttled(jobs[3].lease, 0))
    assert cooling(world) == (2, 10), "it has cooled: another event"


def test_the_cool_down_doubles_up_to_the_cap(world: World) -> None:
    world.task()
    seen = []
    for _ in range(9):
        hit(world)
        _, seconds = cooling(world)
        seen.append(seconds)
        world.advance(seconds or 0)
    assert seen == [5, 10, 20, 40, 80, 160, 320, 640, 900]


def test_it_begins_anew_only_after_two_quiet_minutes(world: World) -> None:
    world.task()
    hit(world)
    world.advance(5)
    world.now += QUIET - 1
    hit(world)
    assert cooling(world) == (2, 10)
    world.advance(10)
    world.now += QUIET
    hit(world)
    assert cooling(world) == (1, 5)


def test_the_longest_wait_that_was_asked_for_counts(world: World) -> None:
    work = world.task()
    world.app.enqueue_many([work.job(), work.job(), work.using(queue="other").job()])
    one, two, three = world.claim(3)
    world.finish(
        Throttled(one.lease, 7 * SECOND), Throttled(two.lease, 30 * SECOND), Throttled(three.lease, SECOND)
    )
    assert cooling(world) == (1, 30)
    assert cooling(world, "other") == (1, 5)
    assert world.row(one).run_at == world.now + 7 * SECOND


def test_a_throttle_may_spare_the_queue(world: World) -> None:
    work = world.task()
    other = work.enqueue()
    job = work.using(priority=1).enqueue()
    world.attempt(Throttled, 5 * SECOND, cool_queue=False)
    assert cooling(world) == (0, None)
    assert world.row(job).throttles == 1
    assert world.claim_one().id == other.id


def test_without_a_wait_of_its_own_the_job_backs_off_by_its_throttles(world: World) -> None:
    job = world.task(backoff=Backoff(base=100, cap=900)).enqueue()
    waits = []
    for _ in range(5):
        world.attempt(Throttled, None, cool_queue=False)
        waits.append(world.row(job).run_at - world.now)
        world.now = world.row(job).run_at
    assert all(
        wait < ceiling * SECOND for wait, ceiling in zip(waits, (100, 200, 400, 800, 900), strict=True)
    )
    assert max(waits) > 100 * SECOND
    assert (world.row(job).throttles, world.row(job).attempt) == (5, 0)


def test_the_back_off_of_the_queue_sets_the_pace(world: World) -> None:
    world.app.set_queue("default", backoff=Backoff(base=3, cap=4))
    world.task(backoff=100)
    hit(world)
    assert cooling(world) == (1, 3)
    world.advance(3)
    hit(world)
    assert cooling(world) == (2, 4)


def test_a_throttle_under_a_cancel_still_cools_the_queue(world: World) -> None:
    job = world.task().enqueue()
    claimed = world.claim_one()
    world.app.cancel_job(job.id)
    world.finish(Throttled(claimed.lease, 0))
    assert world.row(job).state == "canceled"
    assert cooling(world) == (1, 5)
