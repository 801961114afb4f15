"""Claims over several queues: strict, weighted, merged; paused and cooling ones."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta

import pytest

from perdure.client.queues import QueueEdit
from perdure.errors import InvalidOption
from perdure.model.backoff import Backoff
from perdure.model.job import SECOND
from perdure.model.lifecycle import Throttled
from perdure.ops.queues import end_pauses
from perdure.request.times import from_us
from tests.conformance.world import World, ids


def fill(world: World, *queues: str, n: int = 1, priority: int = 0) -> list[str]:
    work = world.app.tasks.get("work") or world.task()
    asked = [work.using(queue=queue, priority=priority).job() for queue in queues for _ in range(n)]
    return ids(world.app.enqueue_many(asked))


def test_named_queues_are_served_in_the_order_named(world: World) -> None:
    low = fill(world, "b", n=2)
    high = fill(world, "a", n=2, priority=9)
    assert ids(world.claim(3, queues=["b", "a"])) == [*low, high[0]]
    assert ids(world.claim(3, queues=["b", "a"])) == [high[1]]


def test_queues_that_are_not_named_are_left_alone(world: World) -> None:
    fill(world, "a", "c", n=2)
    b = fill(world, "b")
    assert ids(world.claim(9, queues=["nothing here", "b"])) == b


def test_without_names_all_queues_are_one(world: World) -> None:
    first = fill(world, "b")
    second = fill(world, "a")
    third = fill(world, "c")
    high = fill(world, "d", priority=1)
    assert ids(world.claim(9)) == high + first + second + third


def test_a_queue_named_twice_is_one_queue(world: World) -> None:
    jobs = fill(world, "a", n=3)
    assert ids(world.claim(3, queues=["a", "a"])) == jobs


def test_weights_are_the_odds_of_standing_first(world: World) -> None:
    fill(world, "often", "seldom", n=80)
    served = Counter(world.claim(1, queues={"often": 4, "seldom": 1})[0].queue for _ in range(80))
    assert 50 <= served["often"] <= 75
    assert served["seldom"] >= 5


def test_a_weighted_queue_that_is_empty_leaves_its_turn_to_the_others(world: World) -> None:
    jobs = fill(world, "seldom", n=3)
    assert ids(world.claim(3, queues={"often": 1000, "seldom": 0.001})) == jobs


@pytest.mark.parametrize("weight", [0, -1, float("nan"), float("inf"), "1"])
def test_a_weight_that_is_no_weight_is_refused(world: World, weight: float) -> None:
    with pytest.raises(InvalidOption):
        world.claim(1, queues={"a": 1, "b": weight})


def test_a_paused_queue_gives_nothing_until_it_is_resumed(world: World) -> None:
    paused, free = fill(world, "a", priority=9), fill(world, "b")
    world.app.pause_queue("a")
    world.app.pause_queue("a")
    assert ids(world.claim(9)) == free
    assert world.claim(9, queues=["a"]) == []
    assert [(queue.name, queue.paused) for queue in world.app.list_queues()] == [("a", True)]
    world.app.resume_queue("a")
    assert ids(world.claim(9)) == paused
    assert [(queue.name, queue.paused) for queue in world.app.list_queues()] == [("a", False)]


def test_a_pause_says_since_when_by_whom_and_why(world: World) -> None:
    begin = from_us(world.now)
    world.app.pause_queue("a", reason="the gateway is down", by="ann")
    world.advance(60)
    assert world.app.list_queues()[0].pause == (begin, "ann", "the gateway is down", None)
    world.app.pause_queue("a", reason="and a deploy", by="bob")
    assert world.app.list_queues()[0].pause == (begin, "bob", "and a deploy", None), "it is paused since then"
    assert [act.detail for act in world.app.list_acts()] == [
        {"reason": "and a deploy"},
        {"reason": "the gateway is down"},
    ]
    assert world.app.resume_queue("a", by="eve") == (begin, "bob", "and a deploy", None)
    assert (world.app.list_queues()[0].pause, world.app.resume_queue("a")) == (None, None)
    world.app.pause_queue("a")
    assert world.app.list_queues()[0].pause == (from_us(world.now), None, None, None)


@pytest.mark.parametrize("given", ["time", "duration"])
def test_a_pause_ends_by_itself(world: World, given: str) -> None:
    jobs, begin = fill(world, "a", n=2), from_us(world.now)
    end = begin + timedelta(minutes=1)
    world.app.pause_queue("a", resume_at=end if given == "time" else timedelta(minutes=1), by="ann")
    assert world.app.list_queues()[0].pause == (begin, "ann", None, end)
    assert world.app.stats().queues["a"].pause == (begin, "ann", None, end)
    sentence = "Its queue a is paused by ann since 2027-01-15 08:00:00 UTC until 2027-01-15 08:01:00 UTC."
    assert world.app.explain_job(jobs[0]).sentence == sentence
    assert world.app.list_acts()[0].detail == {"resume_at": "2027-01-15 08:01:00 UTC"}
    world.now += 60 * SECOND - 1
    assert (world.claim(9), world.claim(9, queues=["a"])) == ([], [])
    world.now += 1
    assert ids(world.claim(1)) == jobs[:1], "without a sweep"
    assert ids(world.claim(1, queues=["a"])) == jobs[1:]


def test_a_pause_that_is_over_is_not_shown(world: World) -> None:
    (job,) = fill(world, "a")
    world.app.pause_queue("a", resume_at=timedelta(minutes=1), reason="a deploy")
    world.advance(60)
    assert [(queue.paused, queue.pause) for queue in world.app.list_queues()] == [(False, None)]
    queue = world.app.stats().queues["a"]
    assert (queue.paused, queue.pause) == (False, None)
    assert world.app.explain_job(job).code != "queue_paused"
    assert world.app.resume_queue("a") is None
    world.app.pause_queue("a", resume_at=timedelta(minutes=1))
    world.advance(61)
    world.app.pause_queue("a")
    assert world.app.list_queues()[0].pause == (from_us(world.now), None, None, None), "a new one"
    world.advance(3600)
    assert world.claim() == [], "this one does not end by itself"


def test_a_pause_that_is_over_is_tidied_up(world: World) -> None:
    world.app.pause_queue("a", resume_at=timedelta(minutes=1), reason="a deploy", by="ann")
    world.app.pause_queue("b", resume_at=timedelta(minutes=2))
    world.app.pause_queue("c")
    world.advance(60)
    listening = world.listen()
    assert world.store.perform(end_pauses) == ["a"]
    assert listening == [frozenset(["queue/a"])]
    columns = "name, paused_at IS NULL, paused_by, pause_reason, resume_at IS NULL"
    left = [
        bool(value) if type(value) is int else value
        for value in world.sql(f"SELECT {columns} FROM perdure.queue WHERE NOT paused")[0]
    ]
    assert left == ["a", True, None, None, True]
    assert [queue.paused for queue in world.app.list_queues()] == [False, True, True]


def test_a_pause_cannot_end_before_it_begins(world: World) -> None:
    for past in (from_us(world.now), from_us(world.now) - timedelta(hours=1)):
        with pytest.raises(InvalidOption, match="resume_at must lie in the future"):
            world.app.pause_queue("a", resume_at=past)
    for nonsense in (timedelta(0), timedelta(seconds=-1), 60, "12:00", datetime(2030, 1, 1)):
        with pytest.raises(InvalidOption, match="resume_at must"):
            world.app.pause_queue("a", resume_at=nonsense)  # type: ignore[arg-type]
    assert world.app.list_queues() == []


def test_to_resume_a_queue_that_nobody_paused_changes_nothing(world: World) -> None:
    assert world.app.resume_queue("a") is None
    assert world.app.list_queues() == []


def test_a_queue_that_was_paused_before_that_was_recorded_has_no_time(world: World) -> None:
    world.app.pause_queue("a")
    world.sql("UPDATE perdure.queue SET paused_at = NULL")
    assert world.app.list_queues()[0].pause == (None, None, None, None)
    job = world.task(queue="a").enqueue()
    assert world.app.explain_job(job.id).sentence == "Its queue a is paused."
    assert world.app.resume_queue("a") == (None, None, None, None)


def test_a_queue_may_be_paused_before_it_has_jobs_and_what_runs_goes_on(world: World) -> None:
    running = fill(world, "a")
    (claimed,) = world.claim()
    world.app.pause_queue("a")
    fill(world, "a")
    assert world.claim() == []
    assert world.operations.heartbeat(world.worker).running == [(running[0], claimed.token)]


def test_a_cooling_queue_gives_nothing_until_it_has_cooled(world: World) -> None:
    world.app.set_queue("a", backoff=Backoff(base=10, cap=10))
    hot, *rest = fill(world, "a", n=3)
    free = fill(world, "b", priority=-1)
    world.attempt(Throttled, None)
    assert ids(world.claim(9)) == free
    world.now += 10 * SECOND - 1
    assert world.claim(9) == []
    world.now += 1
    assert sorted(ids(world.claim(9))) == sorted([hot, *rest])


def test_settings_of_a_queue_are_listed(world: World) -> None:
    backoff = Backoff(base=1, cap=2, codes={"http.503": 60})
    world.app.set_queue("b", backoff=backoff)
    world.app.pause_queue("a")
    a, b = world.app.list_queues()
    assert (a.name, a.paused, a.cool_until, a.throttles, a.backoff) == ("a", True, None, 0, None)
    assert (b.name, b.paused, b.backoff) == ("b", False, backoff)
    with pytest.raises(InvalidOption, match="nothing to set"):
        world.app.set_queue("b")
    assert world.app.list_queues()[1].backoff == backoff
    world.app.set_queue("b", backoff=None)
    assert world.app.list_queues()[1].backoff is None


def test_a_setting_that_is_not_given_stays_as_it_is(world: World) -> None:
    world.app.set_queue("a", backoff=7)
    world.app.pause_queue("a")
    pause = (from_us(world.now), None, None, None)
    first, second = Backoff(7, 900), Backoff(8, 900)
    edits = [("backoff", first, None)]
    assert world.app.list_queues() == [("a", True, None, 0, first, pause, None, None, None, edits)]
    world.app.set_queue("a", backoff=8)
    edits = [("backoff", second, None)]
    assert world.app.list_queues() == [("a", True, None, 0, second, pause, None, None, None, edits)]
    fill(world, "a")
    world.app.resume_queue("a")
    world.attempt(Throttled, None)
    (cooling,) = world.app.list_queues()
    assert (cooling.paused, cooling.throttles, cooling.backoff) == (False, 1, Backoff(8, 900))
    world.app.set_queue("a", backoff=None)
    assert world.app.list_queues() == [
        cooling._replace(backoff=None, edits=[QueueEdit("backoff", None, None)])
    ]


def test_a_setting_that_queues_do_not_have_is_named(world: World) -> None:
    with pytest.raises(
        InvalidOption, match=r"back_off is not an option of a queue\. Did you mean 'backoff'\?"
    ):
        world.app.set_queue("a", back_off=7)  # type: ignore[call-arg]
    assert world.app.list_queues() == []


def test_a_back_off_is_seconds_or_a_policy(world: World) -> None:
    world.app.set_queue("a", backoff=7)
    world.app.set_queue("b", backoff=1000)
    assert [queue.backoff for queue in world.app.list_queues()] == [Backoff(7, 900), Backoff(1000, 1000)]
    for nonsense in (-1, "7", True, float("nan")):
        with pytest.raises(InvalidOption):
            world.app.set_queue("a", backoff=nonsense)  # type: ignore[arg-type]
    assert world.app.list_queues()[0].backoff == Backoff(7, 900)
