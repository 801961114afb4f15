"""Why a job is not running, read from a database."""

from __future__ import annotations

import pytest

from perdure.errors import JobNotFound
from perdure.model.explain import MOST_AHEAD
from perdure.model.job import SECOND
from perdure.model.lifecycle import Failed, Succeeded, Throttled
from tests.conformance.world import LEASE, World


def serve(world: World, *, tasks: tuple[str, ...] = ("work",), queues: list[str] | None = None) -> None:
    world.ledger.register("server", name="ann", lease=LEASE, tasks=tasks, queues=queues)
    world.worker = "server"


def code(world: World, id: str) -> str:
    return world.app.explain_job(id).code


def test_a_job_that_is_not_there_is_not_found(world: World) -> None:
    for id in ("0198a1b2-0000-7000-8000-000000000000", "no id"):
        with pytest.raises(JobNotFound):
            world.app.explain_job(id)


def test_a_life_as_it_is_explained(world: World) -> None:
    serve(world)
    job = world.task(backoff=0).using(delay=5).enqueue()
    assert code(world, job.id) == "scheduled"
    world.advance(5)
    assert code(world, job.id) == "ready"
    claimed = world.claim_one()
    assert world.app.explain_job(job.id).sentence.startswith("It runs on ann since 2027-01-15 08:00:05 UTC")
    world.finish(Failed(claimed.lease, "error", delay=SECOND))
    assert code(world, job.id) == "retrying"
    world.advance(1)
    world.claim_one()
    world.app.cancel_job(job.id)
    assert code(world, job.id) == "cancel_requested"
    world.advance(LEASE / SECOND)
    assert code(world, job.id) == "lost"
    world.ledger.rescue()
    assert code(world, job.id) == "ended"


def test_a_queue_that_hands_out_nothing(world: World) -> None:
    serve(world)
    work = world.task()
    job = work.enqueue()
    world.app.pause_queue("default")
    assert code(world, job.id) == "queue_paused"
    world.app.resume_queue("default")
    world.attempt(Throttled, 60 * SECOND)
    other = work.enqueue()
    assert code(world, other.id) == "queue_cooling"
    elsewhere = work.using(queue="other").enqueue()
    assert code(world, elsewhere.id) == "ready", "another queue's settings are its own"


def test_who_serves(world: World) -> None:
    job = world.task().enqueue()
    assert code(world, job.id) == "task_unserved", "the world's own worker says nothing of its tasks"
    serve(world, queues=["other"])
    assert code(world, job.id) == "unserved"
    world.advance(LEASE / SECOND)
    assert code(world, job.id) == "no_worker", "a silent worker serves nobody, though it is not retired yet"


def test_a_queue_nobody_serves(world: World) -> None:
    job = world.task().enqueue()
    serve(world, queues=["other"])
    world.ledger.retire("worker-1")
    assert code(world, job.id) == "queue_unserved"


def test_an_expired_job_and_a_held_one(world: World) -> None:
    serve(world)
    work = world.task()
    expired, held = work.using(expires=1).enqueue(), work.enqueue()
    world.sql("UPDATE perdure.job SET held = 'limit' WHERE id = :id", id=held.id)
    world.advance(1)
    assert code(world, expired.id) == "expired"
    assert world.app.explain_job(held.id).sentence == "It is held by limit."


def test_the_jobs_ahead_are_those_that_would_be_claimed_before(world: World) -> None:
    serve(world)
    work = world.task()
    mine = work.using(priority=1).enqueue()
    work.using(priority=1).enqueue()
    work.using(priority=2, delay=60).enqueue()
    work.using(priority=2, queue="other").enqueue()
    work.enqueue()
    assert code(world, mine.id) == "ready", "behind it, later, elsewhere and less important are not ahead"
    last = work.using(priority=0).enqueue()
    assert world.app.explain_job(last.id).sentence == "3 jobs of its queue come before it."
    order = [job.id for job in world.claim(10, queues=["default"])]
    assert order.index(last.id) == 3, "as the claim has it"


def test_what_stands_ahead_is_counted_up_to_a_bound(world: World) -> None:
    serve(world)
    work = world.task()
    world.app.enqueue_many([work.job() for _ in range(MOST_AHEAD + 5)])
    last = work.enqueue()
    assert world.app.explain_job(last.id).sentence == "1000 or more jobs of its queue come before it."


def test_an_ended_job_says_how(world: World) -> None:
    world.task().enqueue()
    job = world.attempt(Succeeded)
    assert world.app.explain_job(job.id).sentence == "It succeeded at 2027-01-15 08:00:00 UTC (0 s ago)."
