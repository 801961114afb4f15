"""Rows that somebody's trigger refuses, with any code: they stop no other row, and their jobs do not run for free."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from perdure.client.job import Job
from perdure.errors import SchemaError, StoreReadOnly, Unavailable
from perdure.model.job import Lease
from perdure.model.lifecycle import Canceled, Failed, Outcome, Report, Snoozed, Succeeded
from perdure.ops import set_aside
from perdure.ops.report import JobReport, LogLine
from perdure.ops.worker import list_workers
from perdure.plan.plan import run
from tests.conformance.flow import Flow
from tests.conformance.test_damaged_rows import refuse_claims
from tests.conformance.world import POISON, World, ids

OUTAGES = ["42P01", "42703", "3F000", "42501", "55000", "57014", "53100", "40001", "55P03", "57P01", "25006"]
"""Codes that mean an outage, unless other rows can be written."""

CODES = ["P0001", "23514", "22003", *OUTAGES]


def has_code(world: World, code: str) -> bool:
    """RAISE() of SQLite has one code."""
    return world.store.dialect == "postgres" or code == "P0001"


def claim_some(world: World, refused: set[int], n: int, **options: Any) -> tuple[list[Job[Any]], list[Lease]]:
    """n jobs, of which these are of the tenant POISON; all are claimed."""
    work = world.task(**options)
    jobs = world.app.enqueue_many(
        [work.using(tenant=POISON if i in refused else None).job() for i in range(n)]
    )
    return jobs, [job.lease for job in world.claim(n)]


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("refused", [{3}, {0, 1, 2, 3, 4, 5, 6, 7}, set(range(0, 40, 5))])
def test_a_refused_outcome_stops_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch, code: str, refused: set[int]
) -> None:
    monkeypatch.setattr("perdure.worker.split.PROVE_WITHIN", 60.0)
    if not has_code(world, code):
        return
    jobs, leases = claim_some(world, refused, 40)
    world.poison(code)
    finished, _ = world.operations.cycle(
        world.worker, [Succeeded(one, "1") for one in leases], tasks=["work"], n=1
    )
    others = [one for i, one in enumerate(leases) if i not in refused]
    assert (sorted(finished.accepted), finished.refused) == (sorted(others), [])
    assert {world.row(jobs[i]).state for i in refused} == {"running"}
    world.cure()
    rest = [Succeeded(leases[i], "1") for i in refused]
    assert len(world.finish(*rest).accepted) == len(rest)


@pytest.mark.parametrize("code", OUTAGES)
def test_a_refused_outcome_alone_stops_no_claim(postgres_world: World, code: str) -> None:
    """Nothing but the claim tells that it is no outage."""
    _, (lease,) = claim_some(postgres_world, {0}, 1)
    job = postgres_world.app.tasks["work"].enqueue()
    postgres_world.poison(code)
    finished, batch = postgres_world.operations.cycle(
        postgres_world.worker, [Succeeded(lease)], tasks=["work"], n=1
    )
    assert (finished.accepted, finished.refused, ids(batch)) == ([], [], [job.id])


@pytest.mark.parametrize("code", OUTAGES)
def test_a_database_that_takes_nothing_is_waited_for(postgres_world: World, code: str) -> None:
    _, leases = claim_some(postgres_world, set(range(4)), 4)
    postgres_world.app.tasks["work"].enqueue()
    postgres_world.poison(code)
    postgres_world.sql(
        "CREATE TRIGGER refuse_all BEFORE UPDATE ON perdure.job "
        "FOR EACH STATEMENT EXECUTE FUNCTION perdure.refuse()"
    )
    outcomes = [Succeeded(lease) for lease in leases]
    with pytest.raises((Unavailable, SchemaError)):
        postgres_world.operations.cycle(postgres_world.worker, outcomes, tasks=["work"], n=1)
    postgres_world.cure()
    assert len(postgres_world.finish(*outcomes).accepted) == 4


@pytest.mark.parametrize("code", OUTAGES)
def test_a_job_whose_claim_is_refused_stops_no_other(postgres_world: World, code: str) -> None:
    work = postgres_world.task()
    work.using(tenant=POISON, priority=5).enqueue()
    jobs = postgres_world.app.enqueue_many([work.job() for _ in range(5)])
    refuse_claims(postgres_world, code=code)
    assert ids(postgres_world.claim(10)) == ids(jobs)


@pytest.mark.parametrize("code", CODES)
def test_a_job_that_cannot_be_rescued_stops_no_other(world: World, code: str) -> None:
    if not has_code(world, code):
        return
    refused = {0, 1, 4}
    jobs, _ = claim_some(world, refused, 8)
    world.operations.retire(world.worker)
    world.poison(code)
    assert sorted(world.rescue(page=3)) == [job.id for i, job in enumerate(jobs) if i not in refused]
    world.cure()
    assert len(world.rescue()) == len(refused)


def expire_some(world: World, refused: int, n: int) -> list[Job[Any]]:
    """n jobs that expired, the first of them of the tenant POISON."""
    work = world.task()
    jobs = world.app.enqueue_many(
        [work.using(tenant=POISON if i < refused else None, expires=1 + i / 100).job() for i in range(n)]
    )
    world.advance(60)
    return jobs


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("refused", [1, 7])
def test_an_expired_job_that_is_refused_stops_no_other(
    world: World, caplog: pytest.LogCaptureFixture, code: str, refused: int
) -> None:
    if not has_code(world, code):
        return
    jobs = expire_some(world, refused, 20)
    refuse_claims(world, "NEW.state = 'canceled'", code=code)
    with caplog.at_level(logging.ERROR, "perdure.worker"):
        for _ in range(refused):  # as a sweeper, which takes a page of refused rows alone for an outage
            with suppress(Unavailable, SchemaError):
                world.operations.expire(page=3)
        assert world.operations.expire(page=3) == 0
    assert len(caplog.messages) == refused, "each once"
    assert [world.row(job).state for job in jobs] == ["ready"] * refused + ["canceled"] * (20 - refused)
    assert sorted(world.operations.sweeps.expired) == sorted(ids(jobs[refused:]))
    world.cure()
    assert world.operations.expire(page=3) == refused


@pytest.mark.parametrize("code", CODES)
def test_a_workflow_whose_step_cannot_expire_stops_no_other(flow: Flow, code: str) -> None:
    world = flow.world
    if not has_code(world, code):
        return
    started = [flow.start(flow.of(a=[])) for _ in range(3)]
    world.sql("UPDATE perdure.job SET expires_at = run_at")
    world.sql(f"UPDATE perdure.job SET tenant = '{POISON}' WHERE workflow_id = :id", id=started[0].id)
    refuse_claims(world, "NEW.state = 'canceled'", code=code)
    world.advance(60)
    assert world.operations.expire() == 2
    world.cure()
    assert world.operations.expire() == 1


def refuse_success(world: World, code: str, of: str = "NEW.state = 'succeeded'") -> None:
    refuse_claims(world, of, of=f"OLD.tenant = '{POISON}' AND OLD.state = 'running'", code=code)


@pytest.mark.parametrize("code", ["23514", "22003"])
def test_an_outcome_that_its_row_never_takes_costs_an_attempt(
    postgres_world: World, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    (job, _), (lease, other) = claim_some(postgres_world, {0}, 2, max_attempts=1)
    refuse_success(postgres_world, code)
    for _ in range(3):
        assert postgres_world.finish(Succeeded(lease, "1")).accepted == []
    monkeypatch.setattr("perdure.worker.damaged_rows.KEEP_FOR", 0.0)
    assert postgres_world.finish(Succeeded(lease, "1")).accepted == [], "nothing else was taken since"
    postgres_world.finish(Succeeded(other, "1"))
    finished = postgres_world.finish(Succeeded(lease, "1"))
    assert (finished.accepted, [type(one) for one in finished.instead]) == ([lease], [Failed])
    row = postgres_world.row(job)
    assert (row.state, row.attempt, row.error_code) == ("failed", 1, "job.outcome_refused")


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (lambda lease: Snoozed(lease, 5), "ready"),
        (lambda lease: Canceled(lease, "enough"), "failed"),
        (lambda lease: Failed(lease, "fatal", "x", "poison"), "failed"),
    ],
)
def test_every_outcome_that_its_row_never_takes_costs_an_attempt(
    postgres_world: World, monkeypatch: pytest.MonkeyPatch, outcome: Any, state: str
) -> None:
    monkeypatch.setattr("perdure.worker.damaged_rows.KEEP_FOR", 0.0)
    (job, _), (lease, other) = claim_some(postgres_world, {0}, 2)
    refuse_success(postgres_world, "23514", "NEW.error_code IS DISTINCT FROM 'job.outcome_refused'")
    made: Outcome = outcome(lease)
    postgres_world.finish(made, Succeeded(other))
    assert postgres_world.finish(made).accepted == [lease]
    row = postgres_world.row(job)
    assert (row.state, row.attempt, row.error_code) == (state, 1, "job.outcome_refused")


@pytest.mark.parametrize("code", ["P0001", "23514", "42P01"])
def test_a_refused_result_is_dropped_after_a_minute_and_not_before(
    world: World, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    if not has_code(world, code):
        return
    (job, *_), (lease, *others) = claim_some(world, {0}, 3)
    refuse_success(world, code, "NEW.result IS NOT NULL")
    world.finish(Succeeded(lease, "1"), Succeeded(others[0], "1"))
    for _ in range(3):
        assert world.finish(Succeeded(lease, "1")).accepted == []
    monkeypatch.setattr("perdure.worker.damaged_rows.KEEP_FOR", 0.0)
    assert world.finish(Succeeded(lease, "1")).accepted == [lease]
    row = world.row(job)
    assert (row.state, row.result, row.reason) == ("succeeded", None, "result.refused")


def test_a_missing_right_is_named_though_rows_are_tried_alone(postgres_world: World) -> None:
    _, leases = claim_some(postgres_world, {0, 1}, 2)
    postgres_world.poison("42501")
    with pytest.raises(StoreReadOnly):
        postgres_world.finish(*(Succeeded(lease) for lease in leases))


def set_all_aside(world: World, refused: int, n: int) -> list[Job[Any]]:
    """n jobs that are due in an hour and were set aside, the first of them of the tenant POISON."""
    work = world.task()
    jobs = world.app.enqueue_many(
        [work.using(tenant=POISON if i < refused else None, delay=3600).job() for i in range(n)]
    )
    world.sql("UPDATE perdure.job SET held = 'later'")
    return jobs


@pytest.mark.parametrize("code", ["P0001", "42501", "40001"])
def test_a_job_that_cannot_be_brought_back_stops_no_other(
    world: World, caplog: pytest.LogCaptureFixture, code: str
) -> None:
    if not has_code(world, code):
        return
    jobs = set_all_aside(world, 2, 9)
    refuse_claims(world, "NEW.held IS NULL", code=code)
    world.advance(3600)
    with caplog.at_level(logging.ERROR, "perdure.worker"):
        for _ in range(2):
            with suppress(Unavailable):  # a page of refused rows alone counts as an outage
                run(world.store, world.operations.sweeps.bring_back(page=2))
        assert run(world.store, world.operations.sweeps.bring_back(page=2)) == 0
    assert [world.row(job).held for job in jobs] == ["later"] * 2 + [None] * 7
    assert len(caplog.messages) == 2, "each once"


@pytest.mark.parametrize("code", ["P0001", "42501", "40001"])
def test_a_job_that_cannot_be_set_aside_stops_no_other(
    world: World, caplog: pytest.LogCaptureFixture, code: str
) -> None:
    if not has_code(world, code):
        return
    work, n = world.task(), set_aside.FEW + 5
    jobs = world.app.enqueue_many(
        [work.using(queue=f"{i:02}", tenant=None if i else POISON, delay=3600).job() for i in range(n)]
    )
    refuse_claims(world, "NEW.held IS NOT NULL", code=code)
    with caplog.at_level(logging.ERROR, "perdure.worker"):
        assert run(world.store, world.operations.sweeps.set_aside()) == n - 1
        assert run(world.store, world.operations.sweeps.set_aside()) == 0
    assert [world.row(job).held for job in jobs] == [None] + ["later"] * (n - 1)
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("code", ["P0001", "40001"])
def test_an_expired_job_that_is_refused_costs_no_claim(world: World, code: str) -> None:
    """A claim cancels the expired jobs that it meets, and others beside them."""
    if not has_code(world, code):
        return
    work = world.task()
    work.using(expires=1).enqueue()
    world.task("other").using(tenant=POISON, expires=1).enqueue()
    jobs = world.app.enqueue_many([work.job() for _ in range(3)])
    world.advance(60)
    refuse_claims(world, "NEW.state = 'canceled'", code=code)
    _, batch = world.operations.cycle(world.worker, [], tasks=["work"], n=9)
    assert ids(batch) == ids(jobs)


def test_a_workflow_that_somebody_has_locked_stops_no_rescue(flow: Flow) -> None:
    world = flow.world
    if world.store.dialect == "sqlite":
        return  # where a lock is on the whole database
    started = [flow.start(flow.of(a=[])) for _ in range(2)]
    flow.claim()
    world.operations.retire(world.worker)
    with psycopg.connect(world.url) as other:
        other.execute("SELECT 1 FROM perdure.workflow WHERE id = %s FOR UPDATE", [started[0].id])
        assert len(world.rescue()) == 1
    assert len(world.rescue()) == 1


@pytest.mark.parametrize("code", ["P0001", "40001", "57P01"])
def test_a_report_that_is_refused_stops_no_other(world: World, code: str) -> None:
    if not has_code(world, code):
        return
    jobs, leases = claim_some(world, {1}, 4)
    world.poison(code)
    reports = [JobReport(lease, Report(stage="half")) for lease in leases]
    assert world.operations.report(reports) == ["ok"] * 4
    assert [world.row(job).stage for job in jobs] == ["half", None, "half", "half"]


def test_a_report_alone_is_kept_until_the_database_takes_something_else(postgres_world: World) -> None:
    _, (lease, other) = claim_some(postgres_world, {0}, 2)
    postgres_world.poison("40001")
    report = JobReport(lease, logs=[LogLine("info", "half")])
    with pytest.raises(Unavailable) as refused:
        postgres_world.operations.report([report])
    postgres_world.operations.note_unrecorded([lease], refused.value)
    postgres_world.finish(Succeeded(other))
    assert postgres_world.operations.report([report]) == ["ok"], "dropped"


def refuse_retirement(world: World, worker: str, code: str) -> None:
    """No update of this worker's row is taken."""
    if world.store.dialect == "sqlite":
        world.sql(
            f"CREATE TRIGGER refuse BEFORE UPDATE ON perdure.worker WHEN OLD.id = '{worker}' "
            "BEGIN SELECT RAISE(ABORT, 'no'); END"
        )
        return
    world.sql(
        "CREATE FUNCTION perdure.refuse() RETURNS trigger LANGUAGE plpgsql "
        f"AS $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{code}'; END $$; "
        "CREATE TRIGGER refuse BEFORE UPDATE ON perdure.worker FOR EACH ROW "
        f"WHEN (OLD.id = '{worker}') EXECUTE FUNCTION perdure.refuse()"
    )


@pytest.mark.parametrize("code", CODES)
def test_a_worker_that_cannot_be_retired_stops_no_other(
    world: World, caplog: pytest.LogCaptureFixture, code: str
) -> None:
    if not has_code(world, code):
        return
    workers = [f"silent-{i}" for i in range(4)]
    for worker in workers:
        world.operations.register(worker, name="silent", lease=1)
    refuse_retirement(world, workers[1], code)
    world.advance(60)
    with caplog.at_level(logging.ERROR, "perdure.worker"):
        for _ in range(2):
            world.operations.retire_silent(sweeper=world.worker)
    live = {worker.id for worker in world.store.perform(list_workers)}
    assert live & {*workers} == {workers[1]}
    assert len(caplog.messages) == 1
    world.cure()
    world.operations.retire_silent(sweeper=world.worker)
    assert not {worker.id for worker in world.store.perform(list_workers)} & {*workers}
