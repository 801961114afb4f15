"""A worker's identity: registration, heartbeat, retirement."""

from __future__ import annotations

import pytest

from perdure.errors import InvalidLease, WorkerRetired
from perdure.model.job import SECOND
from perdure.ops import sweep
from tests.conformance.world import LEASE, NOON, World


@pytest.mark.parametrize("lease", [0, -1])
def test_a_lease_lasts_longer_than_nothing(world: World, lease: int) -> None:
    with pytest.raises(InvalidLease):
        world.operations.register("w", name="w", lease=lease)
    assert [worker.id for worker in world.app.list_workers()] == [world.worker]


def test_the_shortest_lease_is_a_lease(world: World) -> None:
    world.operations.register("w", name="w", lease=1)
    assert world.operations.heartbeat("w").live


def test_a_worker_is_known_by_its_lease(world: World) -> None:
    world.advance(7)
    assert world.operations.heartbeat(world.worker).live
    (worker,) = world.app.list_workers()
    assert (worker.id, worker.name, worker.lease) == (world.worker, "one", LEASE)
    assert (worker.started_at, worker.beat_at) == (NOON, NOON + 7 * SECOND)
    assert (worker.expires_at, worker.retired_at) == (NOON + 7 * SECOND + LEASE, None)


def test_a_heartbeat_tells_what_the_database_believes(world: World) -> None:
    work = world.task()
    jobs = [work.enqueue() for _ in range(3)]
    beat = world.operations.heartbeat(world.worker)
    assert beat == (True, [], [], {})
    claimed = world.claim(2)
    world.app.cancel_job(jobs[1].id)
    other, mine = world.worker, world.new_worker()
    world.claim(1)
    assert world.operations.heartbeat(other) == (True, [job.lease for job in claimed], [claimed[1].lease], {})
    assert world.operations.heartbeat(mine).running == [(jobs[2].id, 1)]


def test_an_unknown_worker_is_not_live(world: World) -> None:
    assert world.operations.heartbeat("nobody") == (False, [], [], {})


def test_a_retired_worker_is_not_live_and_stays_so(world: World) -> None:
    job = world.task().enqueue()
    world.claim_one()
    world.operations.retire(world.worker)
    beat = world.operations.heartbeat(world.worker)
    assert (beat.live, beat.running) == (False, [(job.id, 1)])
    with pytest.raises(WorkerRetired):
        world.operations.register(world.worker, name="again", lease=LEASE)
    assert not world.operations.heartbeat(world.worker).live, "it needs a new identity"
    assert world.app.list_workers() == []


def test_a_registration_whose_answer_was_lost_is_made_again(world: World) -> None:
    for _ in range(2):
        world.operations.register("twice", name="twice", lease=LEASE)
        world.advance(1)
    assert [worker.id for worker in world.app.list_workers()].count("twice") == 1


def test_nobody_is_retired_for_one_lease_after_the_clock_was_set(world: World) -> None:
    world.advance(3600)
    steady_since = world.now
    world.now += LEASE - 1
    assert world.store.perform(sweep.retire_silent, steady_since=steady_since) == []
    world.now += 1
    assert world.store.perform(sweep.retire_silent, steady_since=steady_since) == [world.worker]


def test_a_worker_that_beats_in_time_is_not_retired(world: World) -> None:
    world.task().enqueue()
    world.claim_one()
    world.now += LEASE - 1
    assert world.rescue() == []
    assert world.operations.heartbeat(world.worker).live
    world.now += LEASE - 1
    assert world.rescue() == []


def test_a_worker_that_beats_too_late_lives_until_it_was_retired(world: World) -> None:
    world.now += 2 * LEASE
    assert world.operations.heartbeat(world.worker).live
    world.now += LEASE
    world.rescue()
    assert not world.operations.heartbeat(world.worker).live


def test_a_worker_does_not_retire_itself(world: World) -> None:
    """Its sweep may come before its heartbeat, if the machine was suspended."""
    first, second = world.worker, world.new_worker()
    world.now += 2 * LEASE
    assert world.store.perform(sweep.retire_silent, sweeper=second) == [first]
    assert world.operations.heartbeat(world.worker).live


def test_one_worker_leads_until_its_lease_ends(world: World) -> None:
    one, two = world.worker, world.new_worker()
    assert world.operations.lead("sweeper", one, lease=5 * SECOND)
    assert world.operations.lead("sweeper", one, lease=5 * SECOND), "it may go on"
    assert not world.operations.lead("sweeper", two, lease=5 * SECOND)
    assert world.operations.lead("other", two, lease=5 * SECOND), "each thing has a leader of its own"
    world.now += 5 * SECOND - 1
    assert not world.operations.lead("sweeper", two, lease=5 * SECOND)
    world.now += 1
    assert world.operations.lead("sweeper", two, lease=5 * SECOND)
    assert not world.operations.lead("sweeper", one, lease=5 * SECOND)


def test_the_lead_falls_with_its_worker(world: World) -> None:
    one, two = world.worker, world.new_worker()
    assert world.operations.lead("sweeper", one, lease=LEASE)
    world.operations.retire(one)
    assert world.operations.lead("sweeper", two, lease=LEASE)


def test_a_leader_without_a_heartbeat_loses_the_lead(world: World) -> None:
    one, two = world.worker, world.new_worker()
    assert world.operations.lead("sweeper", one, lease=3 * LEASE)
    world.now += LEASE - 1
    assert not world.operations.lead("sweeper", two, lease=LEASE)
    assert world.operations.heartbeat(two).live
    world.now += 1
    assert world.operations.lead("sweeper", two, lease=LEASE)
    assert world.store.perform(sweep.retire_silent, sweeper=two) == [one]
