"""Retries: how long a job waits for its next attempt, and who decides that."""

from __future__ import annotations

import random

import pytest

from perdure.model.backoff import MAX_DELAY, Backoff
from perdure.model.job import SECOND
from perdure.model.lifecycle import Failed, FailureKind, Released
from perdure.worker.operations import WorkerOperations
from tests.conformance.world import NOON, World


def set_jitter(world: World, roll: float) -> None:
    """From here on every random number is the same."""

    class Loaded(random.Random):
        def random(self) -> float:
            return roll

    world.operations = WorkerOperations(world.store, rng=Loaded())


def fail(world: World, kind: FailureKind = "error", **how: object) -> tuple[int | None, str | None]:
    """One more failed attempt: the wait it brought, and what decided that."""
    world.now = max(world.now, *(world.row(job.id).run_at for job in world.app.list_jobs()))
    job = world.attempt(Failed, kind, **how)
    attempt = world.attempts(job)[-1]
    assert attempt.delay is not None
    assert world.row(job).run_at == world.now + attempt.delay
    return attempt.delay, attempt.decided_by


@pytest.mark.parametrize("roll", [0.0, 0.5, 0.999999])
def test_the_wait_is_between_nothing_and_a_doubling_ceiling(world: World, roll: float) -> None:
    world.task(max_attempts=99, backoff=Backoff(base=2, cap=10)).enqueue()
    set_jitter(world, roll)
    waits = [fail(world) for _ in range(5)]
    assert waits == [(int(ceiling * SECOND * roll), "policy") for ceiling in (2, 4, 8, 10, 10)]


def test_jitter_spreads_the_waits(world: World) -> None:
    work = world.task(backoff=100)
    jobs = world.app.enqueue_many([work.job() for _ in range(20)])
    world.finish(*(Failed(job.lease, "error") for job in world.claim(20)))
    waits = sorted(world.row(job).run_at - NOON for job in jobs)
    assert len(set(waits)) == 20
    assert 0 <= waits[0] < 30 * SECOND
    assert 70 * SECOND < waits[-1] < 100 * SECOND


def test_the_ten_thousandth_attempt_waits_no_longer_than_the_cap(world: World) -> None:
    job = world.task(max_attempts=20_000).enqueue()
    world.sql("UPDATE perdure.job SET attempt = 9999 WHERE id = :id", id=job.id)
    set_jitter(world, 0.999)
    delay, _ = fail(world)
    assert delay == int(900 * SECOND * 0.999)


def test_a_delay_of_the_handler_is_a_lower_bound(world: World) -> None:
    world.task(backoff=Backoff(base=10, cap=10)).enqueue()
    set_jitter(world, 0.5)
    assert fail(world, delay=5 * SECOND + 1) == (5 * SECOND + 1, "handler")
    assert fail(world, delay=5 * SECOND) == (5 * SECOND, "policy")
    assert fail(world, delay=0) == (5 * SECOND, "policy")
    assert fail(world, delay=2**70) == (MAX_DELAY, "handler")


def test_a_failure_code_may_have_a_wait_of_its_own(world: World) -> None:
    world.task(backoff=Backoff(base=10, codes={"http.503": 60, "http.409": 0})).enqueue()
    set_jitter(world, 0.5)
    assert fail(world, code="http.503") == (60 * SECOND, "code")
    assert fail(world, code="http.409") == (0, "code")
    assert fail(world, code="http.503", delay=61 * SECOND) == (61 * SECOND, "handler")
    assert fail(world, code="http.500") == (int(80 * SECOND * 0.5), "policy")


def test_so_may_the_code_of_a_failure_that_was_given_none(world: World) -> None:
    world.task(backoff=Backoff(base=10, codes={"job.error": 1, "job.timeout": 60})).enqueue()
    assert fail(world) == (1 * SECOND, "code")
    assert fail(world, kind="timeout") == (60 * SECOND, "code")


def test_a_queue_overrides_its_tasks_while_they_run(world: World) -> None:
    world.task(queue="mail", backoff=Backoff(base=1, cap=1)).enqueue()
    set_jitter(world, 0.5)
    claimed = world.claim_one()
    world.app.set_queue("mail", backoff=Backoff(base=100, codes={"x": 7}))
    world.finish(Failed(claimed.lease, "error"))
    assert world.attempts(claimed)[-1].delay == 50 * SECOND
    assert fail(world, code="x") == (7 * SECOND, "code")
    world.app.set_queue("mail", backoff=None)
    assert fail(world) == (SECOND // 2, "policy")


def test_a_task_may_change_its_mind_about_waits(world: World) -> None:
    """The policy that counts is the one of the newest code."""
    world.task(backoff=Backoff(base=1, cap=1)).enqueue()
    set_jitter(world, 0.5)
    newer = World(world.url)
    newer.task(backoff=Backoff(base=9, cap=9))
    newer.app.save_tasks()
    newer.close()
    assert fail(world) == (9 * SECOND // 2, "policy")


def test_a_negative_delay_is_no_delay(world: World) -> None:
    job = world.task().enqueue()
    world.attempt(Released, -5)
    assert world.row(job).run_at == NOON
