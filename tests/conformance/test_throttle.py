"""A limit outside was hit: the whole queue cools, for as long as the handler says or longer at each event."""

from __future__ import annotations

from perdure.model.backoff import Backoff
from perdure.model.cool_down import QUIET
from perdure.model.job import SECOND
from perdure.model.lifecycle import Succeeded, Throttled
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


def hit(world: World, delay: int | None = None) -> None:
    """A job that comes back at once hits the limit."""
    job = world.app.tasks["work"].using(priority=9).enqueue()
    world.attempt(Throttled, delay)
    world.app.cancel_job(job.id)


def test_the_exponent_counts_events_of_the_limiter_not_of_its_victims(world: World) -> None:
    work = world.task()
    world.app.enqueue_many([work.job() for _ in range(4)])
    jobs = world.claim(4)
    world.finish(Throttled(jobs[0].lease), Throttled(jobs[1].lease))
    assert cooling(world) == (1, 5)
    world.advance(1)
    world.finish(Throttled(jobs[2].lease))
    assert cooling(world) == (1, 4), "a sibling that hit the same limit"
    world.advance(4)
    world.finish(Throttled(jobs[3].lease))
    assert cooling(world) == (2, 10), "it has cooled: another event"


def test_a_delay_cools_the_queue_for_that_long_and_leaves_the_exponent(world: World) -> None:
    """An upstream that says ``Retry-After: 3`` each time is waited for 3 s each time."""
    world.task()
    for _ in range(4):
        hit(world, 3 * SECOND)
        assert cooling(world) == (0, 3)
        world.advance(3)
    hit(world)
    assert cooling(world) == (1, 5)
    world.advance(5)
    hit(world, 3 * SECOND)
    assert cooling(world) == (1, 3)
    world.advance(3)
    hit(world)
    assert cooling(world) == (2, 10)


def test_the_latest_end_counts(world: World) -> None:
    work = world.task()
    world.app.enqueue_many([work.job() for _ in range(5)])
    jobs = world.claim(5)
    world.finish(Throttled(jobs[0].lease, 7 * SECOND), Throttled(jobs[1].lease, 30 * SECOND))
    assert cooling(world) == (0, 30)
    world.advance(10)
    world.finish(Throttled(jobs[2].lease, 8 * SECOND))
    assert cooling(world) == (0, 20), "it never ends sooner"
    world.finish(Throttled(jobs[3].lease, 60 * SECOND))
    assert cooling(world) == (0, 60)
    world.finish(Throttled(jobs[4].lease))
    assert cooling(world) == (0, 60), "a job that gives no delay adds nothing to a queue that cools"


def test_a_delay_and_the_exponent_at_once(world: World) -> None:
    work = world.task()
    world.app.enqueue_many([work.job() for _ in range(2)])
    one, two = world.claim(2)
    world.finish(Throttled(one.lease, 3 * SECOND), Throttled(two.lease))
    assert cooling(world) == (1, 5)


def test_a_success_that_was_in_flight_does_not_reopen_the_queue(world: World) -> None:
    work = world.task()
    world.app.enqueue_many([work.job() for _ in range(3)])
    one, two = world.claim(2)
    world.finish(Throttled(one.lease))
    world.finish(Succeeded(two.lease))
    assert cooling(world) == (1, 5)
    assert world.claim(1) == []


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


def test_a_delay_after_two_quiet_minutes_begins_anew_as_well(world: World) -> None:
    world.task()
    hit(world)
    world.advance(5)
    world.now += QUIET
    hit(world, SECOND)
    assert cooling(world) == (0, 1)


def test_each_queue_cools_on_its_own(world: World) -> None:
    work = world.task()
    world.app.enqueue_many([work.job(), work.using(queue="other").job()])
    one, two = world.claim(2)
    world.finish(Throttled(one.lease, 7 * SECOND), Throttled(two.lease, SECOND))
    assert (cooling(world), cooling(world, "other")) == ((0, 7), (0, 1))
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
    world.finish(Throttled(claimed.lease))
    assert world.row(job).state == "canceled"
    assert cooling(world) == (1, 5)


def test_an_operator_ends_a_cool_down(world: World) -> None:
    world.task()
    waiting = world.app.tasks["work"].enqueue()
    hit(world)
    assert world.claim(1) == []
    assert world.app.warm_queue("default", by="ann") is True
    assert cooling(world) == (0, None)
    assert world.claim_one().id == waiting.id
    assert world.app.warm_queue("default") is False, "it does not cool"
    assert world.app.warm_queue("no such queue") is False
    (act,) = world.app.list_acts(action="warm_queue")
    assert (act.actor, act.subject) == ("ann", "queue default")


def test_the_cap_is_a_quarter_of_an_hour_whatever_the_back_off_of_the_queue(world: World) -> None:
    world.app.set_queue("default", backoff=Backoff(base=3600, cap=7200))
    world.task()
    hit(world)
    assert cooling(world) == (1, 900)
