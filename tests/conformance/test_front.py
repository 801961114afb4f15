"""A claim that looks at the front alone takes nothing that the whole look would not take first."""

from __future__ import annotations

from time import monotonic

import psycopg
import pytest

from perdure.model.lifecycle import Throttled
from perdure.worker import front
from tests.conformance.world import World, ids

pytestmark = pytest.mark.usefixtures("front_first")


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
    world.ledger.retire(world.worker)
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


def test_lower_priorities_are_left_while_the_front_is_enough(world: World) -> None:
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


def test_what_was_enqueued_long_before_its_commit_is_found_by_the_next_whole_look(
    postgres_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = postgres_world
    work = world.task()
    monkeypatch.setattr(front, "DEAR", -1.0)  # every look has walked past too much
    world.ledger._lookout = front.Lookout(worth=True)
    with psycopg.connect(world.url) as connection:
        late = work.using(conn=connection).enqueue()
        world.advance(3)
        busy = work.enqueue()
        assert ids(world.claim(1)) == ids([busy])
    assert world.claim(1, polls=True) == []
    monkeypatch.setattr(front, "monotonic", lambda: monotonic() + front.WHOLE)
    assert ids(world.claim(1, polls=True)) == ids([late])


@pytest.mark.parametrize(("dear", "polls"), [(60.0, True), (-1.0, False)])
def test_a_front_goes_back_to_the_beginning_where_that_is_cheap_or_nobody_looks_again(
    postgres_world: World, monkeypatch: pytest.MonkeyPatch, *, dear: float, polls: bool
) -> None:
    world = postgres_world
    work = world.task()
    monkeypatch.setattr(front, "DEAR", dear)
    with psycopg.connect(world.url) as connection:
        late = work.using(conn=connection).enqueue()
        world.advance(3)
        busy = work.enqueue()
        assert ids(world.claim(1)) == ids([busy])
    assert ids(world.claim(1, polls=polls)) == ids([late])
