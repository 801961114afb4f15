"""A claim with a window takes only jobs that a claim without one would take first."""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import Any

import psycopg
import pytest

from perdure.model.lifecycle import Throttled
from perdure.worker import claim_window
from tests.conformance.world import World, ids

pytestmark = pytest.mark.usefixtures("window_first")


def test_another_queue_may_come_first(world: World) -> None:
    work = world.task()
    low = work.using(queue="a").enqueue()
    high = work.using(queue="b", priority=1).enqueue()
    assert ids(world.claim(1)) == ids([high])
    assert ids(world.claim(1)) == ids([low])


def test_queues_that_are_named_are_looked_at_in_their_order(world: World) -> None:
    work = world.task()
    a, b = (work.using(queue=queue).enqueue() for queue in "ab")
    c = work.using(queue="c", priority=9).enqueue()
    assert ids(world.claim(1, queues=["b", "a"])) == ids([b])
    assert ids(world.claim(2, queues=["b", "a"])) == ids([a])
    assert ids(world.claim(1)) == ids([c])


def test_lower_priorities_fill_what_the_highest_leaves(world: World) -> None:
    work = world.task()
    high, low = work.using(priority=1).enqueue(), work.enqueue()
    assert ids(world.claim(2)) == ids([high, low])


def test_a_cooling_queue_gives_nothing(world: World) -> None:
    work = world.task()
    work.enqueue()
    world.attempt(Throttled, 60_000_000, cool_queue=True)
    work.enqueue()
    assert world.claim(1) == []
    world.advance(61)
    assert len(world.claim(2)) == 2


def test_a_retired_worker_takes_nothing(world: World) -> None:
    world.task().enqueue()
    world.operations.retire(world.worker)
    assert world.claim(1) == []
    world.new_worker()
    assert len(world.claim(1)) == 1


def test_only_known_tasks_are_taken_wherever_they_stand(world: World) -> None:
    known = world.task("known")
    strange = world.producer().task(name="strange")(lambda: None)
    first, _, third, _ = known.enqueue(), strange.enqueue(), known.enqueue(), strange.enqueue()
    assert ids(world.claim(4)) == ids([first, third])
    assert world.claim(4) == []


def test_what_somebody_holds_is_passed_over(postgres_world: World) -> None:
    world = postgres_world
    work = world.task()
    held, free = work.enqueue(), work.enqueue()
    with psycopg.connect(world.url) as connection:
        world.app.cancel_job(held.id, conn=connection)
        assert ids(world.claim(1)) == ids([free])
        assert world.claim(1) == []


def test_lower_priorities_are_left_while_the_window_is_enough(world: World) -> None:
    work = world.task()
    first, second = work.enqueue(), work.enqueue()
    low = work.using(priority=-1).enqueue()
    assert ids(world.claim(1)) == ids([first])
    assert ids(world.claim(1)) == ids([second])
    assert ids(world.claim(1)) == ids([low])


def test_a_higher_priority_comes_first_whatever_was_found_last(world: World) -> None:
    work = world.task()
    first, second = work.enqueue(), work.enqueue()
    assert ids(world.claim(1)) == ids([first])
    high = work.using(priority=1).enqueue()
    assert ids(world.claim(1)) == ids([high])
    assert ids(world.claim(1)) == ids([second])


def test_a_named_queue_that_stands_before_comes_first(world: World) -> None:
    work = world.task()
    low, last = (work.using(queue="b").enqueue() for _ in range(2))
    assert ids(world.claim(1, queues=["a", "b"])) == ids([low])
    first = work.using(queue="a").enqueue()
    assert ids(world.claim(2, queues=["a", "b"])) == ids([first, last])


@pytest.fixture
def as_it_is(window_first: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without knowledge of the queue, no window is tried."""
    monkeypatch.setattr("perdure.worker.claimer.ClaimWindowTracker", claim_window.ClaimWindowTracker)


def committed_late(world: World, *, seconds: int) -> Any:
    """A job that is committed when one was claimed that was enqueued so many seconds later."""
    work = world.task()
    with psycopg.connect(world.url) as connection:
        late = work.using(conn=connection).enqueue()
        world.advance(seconds)
        busy = work.enqueue()
        assert ids(world.claim(1)) == ids([busy])
    return late


@pytest.mark.usefixtures("as_it_is")
def test_what_was_enqueued_long_before_its_commit_is_found_by_the_next_whole_look(
    postgres_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = postgres_world
    monkeypatch.setattr(claim_window, "SLOW_CLAIM", -1.0)  # every look has walked past too much
    now = monotonic()
    monkeypatch.setattr(claim_window, "monotonic", lambda: now)
    late = committed_late(world, seconds=3)
    assert world.claim(1, polls=True) == []
    now += claim_window.FULL_SCAN_INTERVAL
    assert ids(world.claim(1, polls=True)) == ids([late])


@pytest.mark.usefixtures("as_it_is")
@pytest.mark.parametrize(
    ("longer", "seconds"),
    [
        (0.0, claim_window.FULL_SCAN_INTERVAL),
        (0.001, claim_window.FULL_SCAN_INTERVAL),
        (0.1, 0.1 * claim_window.FULL_SCAN_SPACING),
        (3600.0, claim_window.LONGEST_SPACING),
    ],
)
def test_a_whole_look_that_takes_long_is_rare_and_comes_all_the_same(
    postgres_world: World, monkeypatch: pytest.MonkeyPatch, *, longer: float, seconds: float
) -> None:
    """Longer than a bounded look: whatever both wait for is not what walking past the dead takes."""
    world, work = postgres_world, postgres_world.task()
    monkeypatch.setattr(claim_window, "SLOW_CLAIM", -1.0)
    now = monotonic()
    took = 0.0
    clock = 0.0

    def later() -> float:
        nonlocal clock
        clock += took
        return clock

    monkeypatch.setattr("perdure.worker.claimer.monotonic", later)
    monkeypatch.setattr(claim_window, "monotonic", lambda: now)
    with psycopg.connect(world.url) as connection:
        late = work.using(conn=connection).enqueue()
        world.advance(3)
        busy = work.enqueue()
        assert ids(world.claim(1, polls=True)) == ids([busy])
        took = 60.0
        assert world.claim(1, polls=True) == [], "bounded"
        now, took = now + claim_window.FULL_SCAN_INTERVAL, 60.0 + longer
        assert world.claim(1, polls=True) == [], "everywhere"
    looked = now
    now = looked + 0.99 * seconds
    assert world.claim(1, polls=True) == []
    now = looked + 1.01 * seconds
    assert ids(world.claim(1, polls=True)) == ids([late])


@pytest.mark.usefixtures("as_it_is")
def test_that_claims_are_slow_is_not_forgotten_in_a_full_streak(
    postgres_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each end of a full streak would be followed by a walk past everything."""
    world, work = postgres_world, postgres_world.task()
    monkeypatch.setattr(claim_window, "SLOW_CLAIM", -1.0)
    now = monotonic()
    monkeypatch.setattr(claim_window, "monotonic", lambda: now)
    with psycopg.connect(world.url) as connection:
        late = work.using(conn=connection).enqueue()
        world.advance(3)
        work.enqueue()
        assert len(world.claim(2, polls=True)) == 1
        world.app.enqueue_many([work.job() for _ in range(2 * claim_window.FULL_STREAK)])
        for _ in range(2):
            assert len(world.claim(claim_window.FULL_STREAK, polls=True)) == claim_window.FULL_STREAK
    assert world.claim(1, polls=True) == []
    assert world.claim(1, polls=True) == []
    now += claim_window.FULL_SCAN_INTERVAL
    assert ids(world.claim(1, polls=True)) == ids([late])


@pytest.mark.usefixtures("as_it_is")
def test_a_whole_look_for_some_tasks_does_not_put_off_the_one_for_others(
    postgres_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker has two lanes, one for handlers in processes. The window of one says nothing about the other."""
    world = postgres_world
    monkeypatch.setattr(claim_window, "SLOW_CLAIM", -1.0)
    now = monotonic()
    monkeypatch.setattr(claim_window, "monotonic", lambda: now)
    late = committed_late(world, seconds=3)
    now += claim_window.FULL_SCAN_INTERVAL
    assert world.operations.claim(world.worker, tasks=["of processes"], n=1, polls=True) == []
    assert ids(world.claim(1, polls=True)) == ids([late])


@pytest.mark.usefixtures("as_it_is")
def test_where_claims_are_slow_a_transaction_of_a_second_is_not_waited_for(
    postgres_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = postgres_world
    monkeypatch.setattr(claim_window, "SLOW_CLAIM", -1.0)  # as if the server were far away
    late = committed_late(world, seconds=1)
    assert ids(world.claim(1, polls=True)) == ids([late])


def test_each_of_two_workers_of_a_process_looks_everywhere_in_its_own_queues(postgres_world: World) -> None:
    """A whole look at one's queues must not put off the other's: the one that is slower would wait for ever."""
    tracker = partial(postgres_world.operations._claimer._window_tracker, ["work"])
    assert tracker(["a"]) is not tracker(["b"])
    assert tracker(["a", "b"]) is tracker(["b", "a"]), "weights draw the order anew each time"
    assert tracker(None) not in (tracker(["a"]), tracker([]))


@pytest.mark.parametrize(("slow", "polls"), [(60.0, True), (-1.0, False)])
def test_a_window_goes_back_to_the_beginning_where_that_is_cheap_or_nobody_looks_again(
    postgres_world: World, monkeypatch: pytest.MonkeyPatch, *, slow: float, polls: bool
) -> None:
    world = postgres_world
    monkeypatch.setattr(claim_window, "SLOW_CLAIM", slow)
    late = committed_late(world, seconds=3)
    assert ids(world.claim(1, polls=polls)) == ids([late])


@pytest.mark.usefixtures("as_it_is")
@pytest.mark.parametrize("polls", [True, False])
@pytest.mark.parametrize("n", [claim_window.FULL_STREAK, claim_window.FULL_STREAK // 2])
def test_in_a_full_streak_what_came_late_waits_and_no_longer(
    postgres_world: World, monkeypatch: pytest.MonkeyPatch, *, n: int, polls: bool
) -> None:
    world = postgres_world
    # However busy this machine is: no claim counts as slow, and no time passes.
    monkeypatch.setattr(claim_window, "SLOW_CLAIM", 60.0)
    monkeypatch.setattr(claim_window, "monotonic", lambda: 0.0)
    work = world.task()
    with psycopg.connect(world.url) as connection:
        late = work.using(conn=connection).enqueue()
        world.advance(3)
        jobs = [work.enqueue() for _ in range(claim_window.FULL_STREAK + n + 1)]
        while len(jobs) > n + 1:
            assert ids(world.claim(n)) == ids(jobs[:n])
            del jobs[:n]
    assert ids(world.claim(n, polls=polls)) == ids(jobs[:n]), "the bound holds"
    found = world.claim(n, polls=polls)
    assert (ids(found), found.more) == (ids(jobs[n:]), True)
    assert ids(world.claim(n, polls=polls)) == ids([late])


@pytest.mark.usefixtures("as_it_is")
def test_one_that_finds_nothing_behind_the_bound_looks_before_it(postgres_world: World) -> None:
    world = postgres_world
    work = world.task()
    with psycopg.connect(world.url) as connection:
        late = work.using(conn=connection).enqueue()
        world.advance(3)
        for _ in range(2):
            world.app.enqueue_many([work.job() for _ in range(claim_window.FULL_STREAK)])
            assert len(world.claim(claim_window.FULL_STREAK)) == claim_window.FULL_STREAK
    assert ids(world.claim(claim_window.FULL_STREAK)) == ids([late])
