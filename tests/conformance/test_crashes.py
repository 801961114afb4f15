"""Attempts that ended their worker: panics and losses."""

from __future__ import annotations

import pytest

from perdure.model.job import SECOND
from perdure.model.lifecycle import Continued, Failed, FailureKind
from perdure.model.suspect import SUSPECT_AFTER
from tests.conformance.world import World


def test_the_first_loss_is_ready_at_once_and_later_ones_wait(world: World) -> None:
    job = world.task(backoff=100).enqueue()
    world.claim_one()
    assert world.lose_worker() == [job.id]
    row = world.row(job)
    assert (row.state, row.attempt, row.crashes, row.run_at) == ("ready", 1, 1, world.now)
    assert (row.error_kind, row.error_code) == ("lost", "job.lost")
    world.claim_one()
    world.lose_worker()
    row = world.row(job)
    assert (row.state, row.crashes) == ("ready", 2)
    assert world.now < row.run_at < world.now + 200 * SECOND
    assert [(a.kind, a.decided_by) for a in world.attempts(job)] == [
        ("lost", "first loss"),
        ("lost", "policy"),
    ]


@pytest.mark.parametrize("kind", ["lost", "panic"])
@pytest.mark.parametrize("most", [1, 3])
def test_crashes_beyond_suspicion_end_the_job(world: World, kind: FailureKind, most: int) -> None:
    job = world.task(max_attempts=99, max_crashes=most, backoff=0).enqueue()
    for n in range(1, SUSPECT_AFTER + most):
        world.attempt(Failed, kind)
        assert (world.row(job).state, world.row(job).crashes) == ("ready", n)
    world.attempt(Failed, kind)
    row = world.row(job)
    assert (row.state, row.reason, row.crashes) == ("failed", "crashes", SUSPECT_AFTER + most)


def test_crashes_may_be_allowed_for_ever(world: World) -> None:
    job = world.task(max_attempts=12, max_crashes=None, backoff=0).enqueue()
    for _ in range(11):
        world.attempt(Failed, "panic")
    assert (world.row(job).state, world.row(job).crashes) == ("ready", 11)
    world.attempt(Failed, "panic")
    assert (world.row(job).state, world.row(job).reason) == ("failed", "attempts")


def test_other_failures_are_no_crashes(world: World) -> None:
    job = world.task(max_attempts=99, max_crashes=1, backoff=0).enqueue()
    for kind in ("error", "timeout", "interrupted") * 3:
        world.attempt(Failed, kind)
    assert (world.row(job).state, world.row(job).crashes) == ("ready", 0)


def test_the_claim_says_how_often_a_job_crashed(world: World) -> None:
    world.task(backoff=0).enqueue()
    world.attempt(Failed, "panic")
    assert world.claim_one().crashes == 1


def test_interruptions_are_counted_and_never_fail_a_job(world: World) -> None:
    job = world.task(max_attempts=1, max_crashes=1, backoff=0).enqueue()
    for n in range(1, 9):
        world.attempt(Failed, "interrupted")
        row = world.row(job)
        assert (row.state, row.attempt, row.crashes, row.interruptions) == ("ready", 0, 0, n)
    assert world.claim_one().interruptions == 8


def test_a_new_run_forgets_interruptions(world: World) -> None:
    job = world.task(backoff=0).enqueue()
    world.attempt(Failed, "interrupted")
    world.attempt(Continued)
    assert world.row(job).interruptions == 0
    world.attempt(Failed, "interrupted")
    world.attempt(Failed, "fatal")
    assert world.row(job).interruptions == 1
    world.app.requeue_job(job.id)
    assert world.row(job).interruptions == 0


def test_a_new_run_forgets_crashes(world: World) -> None:
    job = world.task(backoff=0).enqueue()
    world.attempt(Failed, "panic")
    world.attempt(Continued)
    assert world.row(job).crashes == 0
    world.attempt(Failed, "panic")
    world.attempt(Failed, "fatal")
    world.app.requeue_job(job.id)
    assert world.row(job).crashes == 0
