"""Claims: which jobs, in which order, and what a claim writes."""

from __future__ import annotations

import pytest

from perdure.model.job import SECOND
from perdure.model.lifecycle import Failed, Released
from tests.conformance.world import NOON, World, ids


@pytest.fixture(autouse=True, params=["learned", "window first"])
def window(request: pytest.FixtureRequest) -> None:
    """The answers are the same, whichever statement runs first."""
    if request.param == "window first":
        request.getfixturevalue("window_first")


def test_a_claim_is_the_record_of_the_start(world: World) -> None:
    job = world.task(timeout=60).using(tenant="acme", meta={"a": 1}).enqueue(7)
    world.advance(5)
    claimed = world.claim_one()
    assert (claimed.id, claimed.token, claimed.attempt, claimed.run) == (job.id, 1, 1, 1)
    assert (claimed.task, claimed.queue, claimed.priority, claimed.run_at) == ("work", "default", 0, NOON)
    assert (claimed.payload, claimed.tenant, claimed.meta) == ('{"n":7}', "acme", '{"a":1}')
    assert (claimed.max_attempts, claimed.timeout, claimed.checkpoint) == (8, 60 * SECOND, None)
    row = world.row(job)
    assert (row.state, row.worker, row.token, row.attempt) == ("running", world.worker, 1, 1)
    assert (row.started_at, row.finished_at) == (NOON + 5 * SECOND, None)


def test_the_order_is_priority_then_time_then_age(world: World) -> None:
    work = world.task()
    late = work.using(delay=10).enqueue()
    old = work.enqueue()
    young = work.enqueue()
    high = work.using(priority=1, delay=20).enqueue()
    low = work.using(priority=-1).enqueue()
    world.advance(30)
    assert ids(world.claim(9)) == ids([high, old, young, late, low])


def test_claims_one_by_one_keep_the_order_of_claims_together(world: World) -> None:
    work = world.task()
    jobs = [work.using(priority=n % 3, delay=n % 2).enqueue() for n in range(12)]
    world.advance(1)
    expected = sorted(jobs, key=lambda job: (-world.row(job).priority, world.row(job).run_at, job.id))
    assert ids([world.claim_one() for _ in range(5)] + world.claim(7)) == ids(expected)


def test_only_as_many_as_asked_are_taken(world: World) -> None:
    work = world.task()
    jobs = world.app.enqueue_many([work.job() for _ in range(5)])
    assert ids(world.claim(2)) == ids(jobs[:2])
    assert ids(world.claim(3)) == ids(jobs[2:])
    assert world.claim(1) == []


def test_a_job_is_due_at_its_instant_and_not_before(world: World) -> None:
    job = world.task().using(delay=10).enqueue()
    world.now += 10 * SECOND - 1
    assert world.claim() == []
    world.now += 1
    assert ids(world.claim()) == [job.id]


def test_only_named_tasks_are_taken(world: World) -> None:
    work, play, rest = world.task("work"), world.task("play"), world.task("rest")
    jobs = world.app.enqueue_many([work.job(), play.job(), rest.job(), work.job()])
    taken = world.operations.claim(world.worker, tasks=["rest", "work"], n=9)
    assert ids(taken) == ids([jobs[0], jobs[2], jobs[3]])
    assert world.operations.claim(world.worker, tasks=["nobody.has.it"], n=9) == []
    assert world.row(jobs[1]).state == "ready"


@pytest.mark.parametrize("n", [1, 2, 3, 10])
def test_unknown_tasks_in_front_do_not_hide_known_ones(world: World, n: int) -> None:
    """Groups of which all, some and none are known, at several priorities and in several queues."""
    work, play, alien = world.task("work"), world.task("play"), world.task("alien")
    for queue in ("a", "b"):
        for priority, tasks in (
            (5, [alien] * 4),
            (4, [alien, alien, work, alien, play]),
            (3, [work, play, work]),
        ):
            for task in tasks:
                task.using(queue=queue, priority=priority).enqueue()
    known = [job for job in reversed(world.app.list_jobs()) if job.task != "alien"]
    expected = sorted(known, key=lambda job: (-world.row(job).priority, job.id))
    taken: list[str] = []
    while claimed := world.operations.claim(world.worker, tasks=["work", "play"], n=n):
        assert len(claimed) == min(n, len(expected) - len(taken))
        taken += ids(claimed)
    assert taken == ids(expected)
    assert world.app.count_jobs()["a"] == {"ready": 7, "running": 5}


def test_a_task_named_twice_is_one_task(world: World) -> None:
    work, alien = world.task("work"), world.task("alien")
    alien.enqueue()
    jobs = [work.enqueue() for _ in range(3)]
    assert ids(world.operations.claim(world.worker, tasks=["work", "work"], n=3)) == ids(jobs)


def test_held_jobs_are_not_taken(world: World) -> None:
    work = world.task()
    held, free = work.using(priority=9).enqueue(), work.enqueue()
    world.sql("UPDATE perdure.job SET held = 'limit' WHERE id = :id", id=held.id)
    assert ids(world.claim(9)) == [free.id]
    world.sql("UPDATE perdure.job SET held = NULL WHERE id = :id", id=held.id)
    assert ids(world.claim(9)) == [held.id]


def test_only_ready_jobs_are_taken(world: World) -> None:
    job = world.task().enqueue()
    for state in ("waiting", "open", "succeeded", "failed", "canceled"):
        ended = "NULL" if state in ("waiting", "open") else "run_at"
        world.sql(
            f"UPDATE perdure.job SET state = '{state}', finished_at = {ended} WHERE id = :id", id=job.id
        )
        assert world.claim() == []


def test_the_token_grows_at_each_claim_and_is_never_reset(world: World) -> None:
    job = world.task(backoff=0).enqueue()
    world.attempt(Failed, "error")
    world.attempt(Released)
    claimed = world.attempt(Failed, "fatal")
    assert (claimed.token, claimed.attempt) == (3, 2), "an attempt given back does not count"
    world.app.requeue_job(job.id)
    again = world.claim_one()
    assert (again.token, again.attempt, again.run) == (4, 1, 2)


def test_nothing_asked_for_needs_no_database(world: World) -> None:
    world.close()
    claim = world.operations.claim
    assert claim(world.worker, tasks=["work"], n=0) == []
    assert claim(world.worker, tasks=["work"], n=-1) == []
    assert claim(world.worker, tasks=[], n=1) == []
    assert claim(world.worker, tasks=["work"], n=1, queues=[]) == []
    assert claim(world.worker, tasks=["work"], n=1, queues={}) == []
    assert world.finish()[:2] == ([], [])
    assert world.operations.report([]) == []
