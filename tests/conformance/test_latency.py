"""How long jobs waited and ran, read from a database."""

from __future__ import annotations

from datetime import timedelta

import pytest

from perdure.client.stats import RecentStats
from perdure.errors import InvalidOption
from perdure.model.latency import Spread
from perdure.model.lifecycle import Failed, Succeeded
from perdure.ops import latency
from perdure.request.times import from_us
from tests.conformance.world import NOON, World


def recent(world: World, since: float | timedelta = 3600) -> RecentStats:
    found = world.app.stats(since=since).recent
    assert found is not None
    return found


def live(world: World, *, waits: float, runs: float, queue: str = "default", task: str = "work") -> None:
    """One job from its enqueue to its success."""
    (world.app.tasks.get(task) or world.task(task)).using(queue=queue).enqueue()
    world.advance(waits)
    (job,) = world.claim(queues=[queue])
    world.advance(runs)
    world.finish(Succeeded(job.lease))


def test_what_waited_and_ran_is_told_by_queue_and_by_task(world: World) -> None:
    live(world, waits=1, runs=2)
    live(world, waits=3, runs=4, queue="mail")
    live(world, waits=5, runs=6, queue="mail", task="play")
    told = recent(world, 21)
    assert (told.since, told.looked_at, told.whole) == (from_us(NOON), 3, True)
    assert told.queues == {
        "default": (1, 0, 0, 1 / 21, (1, 1, 1, 1), (2, 2, 2, 2)),
        "mail": (2, 0, 0, 2 / 21, (3, 5, 5, 5), (4, 6, 6, 6)),
    }
    assert {name: one.succeeded for name, one in told.tasks.items()} == {"play": 1, "work": 2}


def test_of_a_job_that_was_tried_again_the_last_attempt_counts(world: World) -> None:
    world.task(backoff=0, max_attempts=2).enqueue()
    world.advance(1)
    first = world.claim_one()
    world.advance(50)
    world.finish(Failed(first.lease, "error", delay=100_000_000))
    assert recent(world).queues == {}, "it has not ended"
    world.advance(103)
    second = world.claim_one()
    world.advance(4)
    world.finish(Failed(second.lease, "error"))
    (told,) = recent(world).queues.values()
    assert (told.failed, told.waited, told.ran) == (1, (3,) * 4, (4,) * 4), "without the wait for its retry"


def test_what_was_canceled_before_it_began_has_no_times(world: World) -> None:
    world.task().enqueue().cancel()
    (told,) = recent(world).tasks.values()
    assert (told.canceled, told.waited, told.ran) == (1, None, None)


def test_only_what_ended_in_the_window_is_told(world: World) -> None:
    live(world, waits=0, runs=0)
    world.advance(60)
    assert recent(world, timedelta(seconds=60)).queues["default"].succeeded == 1
    world.app.tasks["work"].enqueue()
    assert recent(world, 59).queues == {}
    at = world.app.stats(since=from_us(NOON)).recent
    assert at is not None
    assert (at.since, list(at.queues)) == (from_us(NOON), ["default"])
    assert world.app.stats(since=None).recent is None
    for since in (-1, "1h", True):
        with pytest.raises(InvalidOption, match="since"):
            world.app.stats(since=since)  # type: ignore[arg-type]


def test_a_part_of_the_jobs_is_told_for_as_long_as_it_reaches_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latency, "NEWEST", 3)
    for _ in range(5):
        live(world, waits=1, runs=1)
    world.advance(2)
    told = recent(world)
    assert (told.looked_at, told.whole) == (3, False)
    assert told.queues["default"][:4] == (3, 0, 0, 0.5), "three in six seconds"


def test_a_queue_with_a_backlog_is_looked_at_where_it_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest jobs are all behind it."""
    monkeypatch.setattr(latency, "NEWEST", 5)
    monkeypatch.setattr(latency, "BEHIND", 3)
    live(world, waits=0, runs=9)
    for _ in range(3):
        live(world, waits=0, runs=1)
    work = world.app.tasks["work"]
    world.app.enqueue_many([work.job() for _ in range(10)])
    world.advance(1)
    told = recent(world)
    assert (told.looked_at, told.whole) == (8, False)
    assert told.queues["default"].ran == Spread(1, 1, 1, 1)
    assert told.queues["default"].succeeded == 3


async def test_the_async_twin(world: World) -> None:
    assert (await world.app.astats(since=60)).recent == (from_us(NOON - 60_000_000), 0, True, {}, {})
