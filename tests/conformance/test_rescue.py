"""Rescue: only the jobs of silent workers; a row that cannot be written does not block others."""

from __future__ import annotations

import pytest

from perdure.model.lifecycle import Succeeded, Throttled
from tests.conformance.world import LEASE, POISON, World, ids


def test_the_jobs_of_a_silent_worker_are_freed(world: World) -> None:
    work = world.task()
    jobs = [work.enqueue() for _ in range(3)]
    world.claim(2)
    world.advance(5)
    silent, alive = world.worker, world.new_worker()
    world.claim(1)
    world.now += LEASE - 5_000_000
    assert world.operations.heartbeat(alive).live
    assert world.rescue() == ids(jobs[:2])
    assert [world.row(job).state for job in jobs] == ["ready", "ready", "running"]
    assert [worker.id for worker in world.app.list_workers()] == [alive]
    assert not world.operations.heartbeat(silent).live
    assert world.rescue() == []


def test_a_rescued_job_says_what_happened(world: World) -> None:
    job = world.task().enqueue()
    world.claim_one()
    world.lose_worker()
    row = world.row(job)
    assert (row.state, row.error_kind, row.error_code, row.worker) == ("ready", "lost", "job.lost", None)
    assert row.error_message == "Its worker fell silent."


def test_a_claim_that_was_under_way_at_the_retirement_is_freed(world: World) -> None:
    job = world.task().enqueue()
    world.claim_one()
    world.operations.retire(world.worker)
    assert world.row(job).state == "running"
    assert world.rescue() == [job.id]


def test_a_retired_worker_claims_nothing(world: World) -> None:
    job = world.task().enqueue()
    world.operations.retire(world.worker)
    assert world.claim() == []
    assert world.operations.cycle(world.worker, [], tasks=["work"], n=1)[1] == []
    assert world.row(job).state == "ready"


def test_a_worker_that_the_database_does_not_know_claims_nothing(world: World) -> None:
    job = world.task().enqueue()
    world.worker = "never registered"
    assert world.claim() == []
    assert world.operations.cycle(world.worker, [], tasks=["work"], n=1)[1] == []
    assert world.row(job).state == "ready"


def test_a_job_of_a_worker_whose_row_is_gone_is_freed(world: World) -> None:
    job = world.task().enqueue()
    world.claim_one()
    world.sql("DELETE FROM perdure.worker")
    assert world.rescue() == [job.id]


def test_a_job_that_ended_in_time_is_left_alone(world: World) -> None:
    job = world.task().enqueue()
    world.attempt(Succeeded)
    world.operations.retire(world.worker)
    assert world.rescue() == []
    assert world.row(job).state == "succeeded"


@pytest.mark.parametrize("jobs", [4, 5])
def test_more_than_a_page_is_freed_in_one_call(world: World, jobs: int) -> None:
    work = world.task()
    made = world.app.enqueue_many([work.job() for _ in range(jobs)])
    world.claim(jobs)
    world.operations.retire(world.worker)
    assert world.rescue(page=2) == ids(made)


@pytest.mark.parametrize("sqlstate", ["P0001", "23514", "22003"])
def test_a_row_that_cannot_be_written_blocks_no_other(world: World, sqlstate: str) -> None:
    work = world.task()
    tenants = [None, POISON, None, POISON, POISON, None]
    jobs = world.app.enqueue_many([work.using(tenant=tenant).job() for tenant in tenants])
    world.claim(len(jobs))
    world.operations.retire(world.worker)
    world.poison(sqlstate)
    assert world.rescue(page=2) == [jobs[0].id, jobs[2].id, jobs[5].id]
    assert world.rescue(page=2) == [], "they stay for the next sweep"
    world.cure()
    assert world.rescue() == [jobs[1].id, jobs[3].id, jobs[4].id]


def test_a_full_page_of_them_blocks_no_other(world: World) -> None:
    work = world.task()
    poisoned = [work.using(tenant=POISON).job() for _ in range(5)]
    jobs = world.app.enqueue_many([*poisoned, work.job()])
    world.claim(6)
    world.operations.retire(world.worker)
    world.poison()
    assert world.rescue(page=2) == [jobs[-1].id]
    assert world.app.count_jobs()["default"] == {"running": 5, "ready": 1}
    world.cure()
    assert len(world.rescue(page=2)) == 5


def test_a_policy_that_was_damaged_by_hand_blocks_nothing(world: World) -> None:
    jobs = [world.task(name).enqueue() for name in ("one", "other")]
    world.claim(2)
    world.sql("UPDATE perdure.task SET backoff = '{\"base\": -1}' WHERE name = 'one'")
    world.operations.retire(world.worker)
    assert world.rescue() == ids(jobs)
    world.sql("INSERT INTO perdure.queue (name, backoff) VALUES ('default', '[]')")
    world.new_worker()
    for claimed in world.claim(2):
        assert world.finish(Throttled(claimed.lease)).accepted == [claimed.lease]
