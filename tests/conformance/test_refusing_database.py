"""A database that refuses some rows, or all of them for a while: other jobs run, and no job is dropped or held."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from perdure.errors import Unavailable
from perdure.model.job import Lease
from perdure.model.lifecycle import Succeeded
from tests.conformance.test_damaged_rows import refuse_claims
from tests.conformance.world import POISON, World, ids


@pytest.fixture
def other(postgres_world: World) -> Iterator[psycopg.Connection[Any]]:
    """A foreign connection, whose transaction ends with the test."""
    with psycopg.connect(postgres_world.url) as connection:
        yield connection
        connection.rollback()


def claim_all(world: World, n: int, *, wanted: int, refused: int) -> list[str]:
    """Claim ``n`` at a time until ``wanted`` jobs were claimed, retrying as a worker does while its database is away.

    A claim stops after half a second, so how many are needed depends on the machine. Each one either takes a job
    or passes over at least one refused row: that is the bound.
    """
    claimed: list[str] = []
    for _ in range(wanted + refused):
        if len(claimed) >= wanted:
            break
        try:
            claimed += ids(world.claim(n))
        except Unavailable:
            continue
    return claimed


@pytest.mark.parametrize(("refused", "healthy", "n"), [(3, 1, 1), (3, 1, 2), (300, 1, 1), (300, 60, 20)])
def test_jobs_behind_any_number_of_refused_ones_are_claimed(
    world: World, refused: int, healthy: int, n: int
) -> None:
    work = world.task()
    world.app.enqueue_many([work.using(tenant=POISON, priority=5).job() for _ in range(refused)])
    refuse_claims(world)
    jobs = world.app.enqueue_many([work.job() for _ in range(healthy)])
    assert sorted(claim_all(world, n, wanted=healthy, refused=refused)) == sorted(ids(jobs))
    assert world.sql("SELECT count(*) FROM perdure.job WHERE held IS NOT NULL")[0][0] == 0


def test_what_a_claim_took_before_it_met_refused_jobs_is_kept(world: World) -> None:
    work = world.task()
    jobs = world.app.enqueue_many([work.using(priority=9).job() for _ in range(3)])
    world.app.enqueue_many([work.using(tenant=POISON, priority=5).job() for _ in range(300)])
    refuse_claims(world)
    assert ids(world.claim(10)) == ids(jobs)


def test_what_a_turn_took_before_it_met_refused_jobs_is_kept(world: World) -> None:
    work = world.task()
    done = work.enqueue()
    (first,) = world.claim(1)
    jobs = world.app.enqueue_many([work.using(priority=9).job() for _ in range(3)])
    world.app.enqueue_many([work.using(tenant=POISON, priority=5).job() for _ in range(300)])
    refuse_claims(world)
    finished, batch = world.operations.cycle(world.worker, [Succeeded(first.lease)], tasks=["work"], n=10)
    assert (finished.accepted, ids(batch)) == ([first.lease], ids(jobs))
    assert world.row(done).state == "succeeded"


def test_a_row_that_somebody_locks_is_not_waited_for_beside_a_refused_one(
    postgres_world: World, other: psycopg.Connection[Any]
) -> None:
    work = postgres_world.task()
    work.using(tenant=POISON, priority=5).enqueue()
    jobs = postgres_world.app.enqueue_many([work.job() for _ in range(10)])
    refuse_claims(postgres_world)
    other.execute("SELECT FROM perdure.job WHERE id = %s FOR UPDATE", [jobs[4].id])
    other.execute("SET lock_timeout = '1s'")
    assert ids(postgres_world.claim(20)) == ids([*jobs[:4], *jobs[5:]])


@pytest.mark.parametrize("code", ["22003", "54000", "P0001"])
def test_an_outcome_that_is_refused_beside_a_locked_row_stops_no_other(
    postgres_world: World, other: psycopg.Connection[Any], code: str
) -> None:
    work = postgres_world.task()
    jobs = postgres_world.app.enqueue_many(
        [work.using(tenant=POISON if n == 2 else None).job() for n in range(5)]
    )
    leases = [job.lease for job in postgres_world.claim(5)]
    postgres_world.poison(code)
    other.execute("SELECT FROM perdure.job WHERE id = %s FOR UPDATE", [jobs[0].id])
    finished, _ = postgres_world.operations.cycle(
        postgres_world.worker, [Succeeded(one) for one in leases], tasks=["work"], n=1
    )
    assert sorted(finished.accepted) == sorted([leases[1], *leases[3:]])
    assert finished.refused == []
    other.rollback()
    postgres_world.cure()
    rest = [leases[0], leases[2]]
    assert sorted(postgres_world.finish(*map(Succeeded, rest)).accepted) == sorted(rest)


@pytest.mark.parametrize("code", ["23502", "22P02", "P0001"])
def test_outcomes_that_a_trigger_refuses_for_a_while_are_kept_one_by_one(
    postgres_world: World, code: str
) -> None:
    """Sent one by one, as a worker does in a retry, no outcome proves that its own row is the cause."""
    work = postgres_world.task()
    postgres_world.app.enqueue_many([work.using(tenant=POISON).job() for _ in range(5)])
    leases: list[Lease] = [job.lease for job in postgres_world.claim(5)]
    postgres_world.poison(code)
    finished = postgres_world.finish(*(Succeeded(lease, "1") for lease in leases))
    assert (finished.accepted, finished.refused) == ([], [])
    for lease in leases:
        finished = postgres_world.finish(Succeeded(lease, "1"))
        assert (finished.accepted, finished.refused) == ([], [])
    postgres_world.cure()
    for lease in leases:
        assert postgres_world.finish(Succeeded(lease, "1")).accepted == [lease]


@pytest.mark.parametrize("code", ["23502", "22P02", "P0001"])
def test_jobs_that_come_one_by_one_while_a_trigger_refuses_all_are_not_held(
    postgres_world: World, code: str
) -> None:
    work = postgres_world.task()
    refuse_claims(postgres_world, of="OLD.state = 'ready'", code=code)
    for _ in range(5):
        work.enqueue()
        with pytest.raises(Unavailable):
            postgres_world.claim(10)
    assert postgres_world.sql("SELECT count(*) FROM perdure.job WHERE held IS NOT NULL")[0][0] == 0
    postgres_world.cure()
    assert len(postgres_world.claim(10)) == 5


def test_jobs_that_one_trigger_refuses_in_several_ways_are_not_held(postgres_world: World) -> None:
    work = postgres_world.task()
    postgres_world.app.enqueue_many([work.using(tenant=POISON if n == 5 else None).job() for n in range(6)])
    postgres_world.sql(
        "CREATE FUNCTION perdure.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"IF OLD.tenant = '{POISON}' THEN RAISE 'no'; END IF; RAISE 'no' USING ERRCODE = '23502'; END $$; "
        "CREATE TRIGGER refuse BEFORE UPDATE ON perdure.job FOR EACH ROW WHEN (NEW.state = 'running') "
        "EXECUTE FUNCTION perdure.refuse()"
    )
    with pytest.raises(Unavailable):
        postgres_world.claim(10)
    assert postgres_world.sql("SELECT count(*) FROM perdure.job WHERE held IS NOT NULL")[0][0] == 0


@pytest.mark.parametrize("code", ["42P01", "42703"])
def test_a_trigger_whose_own_table_is_gone_stops_no_other_job(postgres_world: World, code: str) -> None:
    work = postgres_world.task()
    work.using(tenant=POISON, priority=5).enqueue()
    jobs = postgres_world.app.enqueue_many([work.job() for _ in range(5)])
    refuse_claims(postgres_world, code=code)
    assert ids(postgres_world.claim(10)) == ids(jobs)


def test_jobs_that_failed_while_a_trigger_refused_all_are_claimed_once_it_refuses_one(world: World) -> None:
    work = world.task()
    work.using(tenant=POISON, priority=5).enqueue()
    jobs = world.app.enqueue_many([work.job() for _ in range(40)])
    refuse_claims(world, of="OLD.state = 'ready'")
    with pytest.raises(Unavailable):
        world.claim(10)
    world.cure()
    refuse_claims(world)
    assert sorted(claim_all(world, 10, wanted=40, refused=1)) == sorted(ids(jobs))


def test_refused_jobs_alone_are_no_reason_to_ask_again_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages of them, and nothing else is due."""
    monkeypatch.setattr("perdure.worker.row_search.TRY_FOR", 60)
    work = world.task()
    world.app.enqueue_many([work.using(tenant=POISON).job() for _ in range(210)])
    refuse_claims(world)
    job = work.enqueue()
    assert claim_all(world, 5, wanted=1, refused=210) == [job.id]
    batch = world.claim(5)
    assert (batch, batch.more) == ([], False)


def test_an_outcome_that_is_refused_once_keeps_its_result(world: World) -> None:
    work = world.task()
    jobs = world.app.enqueue_many([work.using(tenant=POISON).job(), work.job()])
    leases = [job.lease for job in world.claim(2)]
    refuse_claims(world, "NEW.result IS NOT NULL")  # without its result it would be taken
    finished = world.finish(*(Succeeded(lease, "1") for lease in leases))
    assert (finished.accepted, finished.refused) == ([leases[1]], [])
    world.cure()
    assert world.finish(Succeeded(leases[0], "1")).accepted == [leases[0]]
    assert [world.row(job).result for job in jobs] == ["1", "1"]


def test_an_outcome_costs_its_attempt_once_a_turn_records_others(
    postgres_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.worker.damaged_rows.KEEP_FOR", 0.0)
    work = postgres_world.task()
    job, _ = postgres_world.app.enqueue_many([work.using(tenant=POISON).job(), work.job()])
    refused, other = (job.lease for job in postgres_world.claim(2))
    refuse_claims(postgres_world, "NEW.state = 'succeeded'", code="23514")
    for _ in range(2):
        assert postgres_world.finish(Succeeded(refused)).accepted == []
    postgres_world.operations.cycle(postgres_world.worker, [Succeeded(other)], tasks=["work"], n=1)
    assert postgres_world.finish(Succeeded(refused)).accepted == [refused]
    assert postgres_world.row(job).error_code == "job.outcome_refused"
