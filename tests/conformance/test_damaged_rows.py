"""A row that was edited by hand, and cannot be claimed or written, does not block others."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest

from perdure.client.job import Job
from perdure.errors import Unavailable
from perdure.model.job import Lease
from perdure.model.lifecycle import Continued, Failed, Snoozed, Succeeded, Throttled
from perdure.worker.claimer import Batch
from tests.conformance.flow import Flow
from tests.conformance.world import POISON, World, ids

GONE = "00000000-0000-0000-0000-0000000000aa"
LARGE = "x" * (9 << 20)


def highest(world: World) -> int:
    """Of a counter."""
    return 2**31 - 1 if world.store.dialect == "postgres" else 2**63 - 1


def damage(world: World, job: Job[Any], how: str) -> None:
    match how:
        case "token" | "attempt":
            world.sql(f"UPDATE perdure.job SET {how} = :n WHERE id = :id", n=highest(world), id=job.id)
        case "not UTF-8":
            world.sql("UPDATE perdure.job SET tenant = CAST(x'ff41' AS text) WHERE id = :id", id=job.id)
        case _:
            value = LARGE if how in ("tenant", "step_key") else f'{{"note": "{LARGE}"}}'
            world.sql(f"UPDATE perdure.job SET {how} = :value WHERE id = :id", value=value, id=job.id)


def refuse_claims(
    world: World, also: str = "false", *, of: str = f"OLD.tenant = '{POISON}'", code: str = "P0001"
) -> None:
    """Make the database refuse to run jobs of the tenant ``POISON``. ``also``: what else it refuses."""
    when = f"{of} AND (NEW.state = 'running' OR {also})"
    if world.store.dialect == "postgres":
        world.sql(
            "CREATE FUNCTION perdure.refuse() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE 'poison' USING ERRCODE = '{code}'; END $$; "
            f"CREATE TRIGGER refuse BEFORE UPDATE ON perdure.job FOR EACH ROW WHEN ({when}) "
            "EXECUTE FUNCTION perdure.refuse()"
        )
    else:
        world.sql(
            f"CREATE TRIGGER refuse BEFORE UPDATE ON perdure.job WHEN {when} "
            "BEGIN SELECT RAISE(ABORT, 'poison'); END"
        )


WAYS = ("token", "attempt", "payload", "checkpoint", "meta", "tenant", "not UTF-8")


def enqueue_damaged(world: World, ways: Sequence[str] = WAYS) -> list[Job[Any]]:
    """One row for each kind of damage. PostgreSQL refuses text that is not UTF-8."""
    ways = [way for way in ways if way != "not UTF-8" or world.store.dialect == "sqlite"]
    jobs = world.app.enqueue_many([world.app.tasks["work"].job() for _ in ways])
    for job, way in zip(jobs, ways, strict=True):
        damage(world, job, way)
    return jobs


def test_they_are_held_with_a_reason_and_all_others_are_claimed(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    work = world.task()
    first = work.enqueue()
    damaged = enqueue_damaged(world)
    others = world.app.enqueue_many([work.job(n) for n in range(8)])
    with caplog.at_level(logging.ERROR, "perdure.worker"):
        assert sorted(ids(world.claim(20))) == sorted(ids([first, *others]))
    assert world.claim(20) == []
    assert len(caplog.messages) == len(damaged)
    reasons = [world.row(job).reason for job in damaged]
    assert reasons[:2] == [
        f"Its {name} is {highest(world)}, and a claim adds 1." for name in ("token", "attempt")
    ]
    assert reasons[2:6] == ["A value in the row is too large."] * 4
    for job in damaged:
        row = world.row(job)
        assert (row.state, row.held) == ("ready", "unclaimable")
        assert row.reason
        (said,) = (said for said in caplog.messages if job.id in said)
        assert row.reason in said
        assert len(said) < 400, "nothing of what the row contains"
        told = world.app.explain_job(job.id)
        assert told.sentence.startswith("No worker can claim it: ")
        assert (told.code, row.reason.rstrip(".") in told.sentence) == ("unclaimable", True)
        assert "run_now" in told.advice
        assert "perdure run-now" in told.shell
    assert sum(queue.held for queue in world.app.stats(since=None).queues.values()) == len(damaged)


def test_the_outcomes_of_the_same_turn_are_recorded(world: World) -> None:
    work = world.task()
    done = world.app.enqueue_many([work.job(n) for n in range(3)])
    outcomes = [Succeeded(job.lease, "7") for job in world.claim(3)]
    enqueue_damaged(world, ("token", "payload", "not UTF-8"))
    work.using(tenant=POISON).enqueue()
    refuse_claims(world)
    other = work.enqueue()
    finished, jobs = world.operations.cycle(world.worker, outcomes, tasks=["work"], n=20)
    assert finished.accepted == [outcome.lease for outcome in outcomes]
    assert [(world.row(job).state, world.row(job).result) for job in done] == [("succeeded", "7")] * 3
    assert ids(jobs) == [other.id]


def test_a_row_that_was_mended_is_claimed_after_run_now(world: World) -> None:
    job = world.task().enqueue()
    damage(world, job, "token")
    assert world.claim() == []
    world.sql("UPDATE perdure.job SET token = 3 WHERE id = :id", id=job.id)
    assert world.app.run_now(job.id) == "due_now"
    (claimed,) = world.claim()
    assert (claimed.token, world.row(job).held, world.row(job).reason) == (4, None, None)


def test_a_step_that_was_mended_is_claimed_after_run_now(flow: Flow) -> None:
    flow.start(flow.of(a=[]))
    (id,) = flow.world.sql("SELECT id FROM perdure.job")[0]
    flow.world.sql("UPDATE perdure.job SET token = :n", n=highest(flow.world))
    assert flow.claim() == []
    flow.world.sql("UPDATE perdure.job SET token = 3")
    assert flow.app.run_now(str(id)) == "due_now"
    assert [job.token for job in flow.claim()] == [4]


def test_it_can_be_canceled_and_run_again_without_the_full_counter(world: World) -> None:
    job = world.task().enqueue()
    damage(world, job, "attempt")
    assert world.claim() == []
    assert job.cancel() == "canceled"
    assert job.requeue() == "requeued"
    assert ids(world.claim()) == [job.id]


@pytest.mark.parametrize("n", [1, 2, 9])
@pytest.mark.parametrize("also", ["false", "NEW.held IS NOT NULL"])
def test_rows_that_the_database_refuses_are_passed_over_and_not_held(
    world: World, caplog: pytest.LogCaptureFixture, also: str, n: int
) -> None:
    work = world.task()
    refused = world.app.enqueue_many([work.using(tenant=POISON).job() for _ in range(3)])
    refuse_claims(world, also)
    jobs = world.app.enqueue_many([work.job(n) for n in range(6)])
    with caplog.at_level(logging.ERROR, "perdure.worker"):
        claimed: list[Any] = []
        while len(claimed) < len(jobs):
            batch = world.claim(n)
            assert 0 < len(batch) <= n
            claimed += batch
    assert sorted(ids(claimed)) == sorted(ids(jobs))
    assert all("job" in said and "refuses" in said for said in caplog.messages)
    assert len(caplog.messages) == len({*caplog.messages}) <= 3
    assert [(world.row(job).state, world.row(job).held) for job in refused] == [("ready", None)] * 3
    world.cure()
    assert sorted(ids(world.claim(9))) == ids(refused)


CODES = ["P0001", "XX000", "54000", "0A000", "22P02", "23514"]


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("n", [1, 4])
def test_a_database_that_refuses_all_claims_is_waited_for(world: World, code: str, n: int) -> None:
    if world.store.dialect == "sqlite" and code != CODES[0]:
        return  # RAISE() has one code
    work = world.task()
    done = work.enqueue()
    (first,) = world.claim(1)
    jobs = world.app.enqueue_many([work.job(n) for n in range(9)])
    refuse_claims(world, of="OLD.state = 'ready'", code=code)
    for _ in range(2):
        with pytest.raises(Unavailable):
            world.claim(n)
    finished, batch = world.operations.cycle(world.worker, [Succeeded(first.lease, "7")], tasks=["work"], n=n)
    assert (finished.accepted, batch, batch.more) == ([first.lease], [], True)
    assert world.row(done).state == "succeeded"
    assert {(world.row(job).state, world.row(job).held) for job in jobs} == {("ready", None)}
    world.cure()
    assert ids(world.claim(9)) == ids(jobs)


def test_a_refusal_that_passes_while_others_are_claimed_passes_over_nobody(world: World) -> None:
    if world.store.dialect == "sqlite":
        return  # where nobody else writes meanwhile
    work = world.task()
    jobs = world.app.enqueue_many([work.job(n) for n in range(6)])
    world.sql(
        "CREATE SEQUENCE perdure.refusals; "
        "CREATE FUNCTION perdure.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF nextval('perdure.refusals') <= 8 THEN RAISE 'poison'; END IF; RETURN NEW; END $$; "
        "CREATE TRIGGER refuse BEFORE UPDATE ON perdure.job FOR EACH ROW WHEN (NEW.state = 'running') "
        "EXECUTE FUNCTION perdure.refuse()"
    )
    assert sorted(ids(world.claim(6))) == ids(jobs)


@pytest.mark.parametrize("n", [1, 2])
def test_the_only_row_that_breaks_a_constraint_is_held(world: World, n: int) -> None:
    if world.store.dialect == "sqlite":
        return  # which has no constraint that holds for new versions of rows alone
    work = world.task()
    job, other = work.using(tenant=POISON).enqueue(), work.enqueue()
    rule = f"CHECK (tenant <> '{POISON}' OR held IS NOT NULL) NOT VALID"
    world.sql(f"ALTER TABLE perdure.job ADD CONSTRAINT rule {rule}")
    try:
        assert ids(world.claim(n)) == [other.id]
        assert ids(world.claim(n)) == []
    finally:
        world.sql("ALTER TABLE perdure.job DROP CONSTRAINT rule")
    assert (world.row(job).state, world.row(job).held) == ("ready", "unclaimable")


def test_hundreds_in_front_are_held_at_once_with_few_lines_in_the_log(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    work = world.task()
    world.app.enqueue_many([work.job(n) for n in range(450)])
    world.sql("UPDATE perdure.job SET token = :n", n=highest(world))
    job = work.enqueue()
    with caplog.at_level(logging.ERROR, "perdure.worker"):
        assert ids(world.claim(1)) == [job.id], "one claim goes on until it finds something"
    held = world.sql(
        "SELECT count(*) FROM perdure.job WHERE held = 'unclaimable' AND reason LIKE 'Its token is%'"
    )
    assert held[0][0] == 450
    assert len(caplog.messages) == 3 * 11, "three pages, ten names and a number each"


def test_hundreds_in_front_whose_ids_cannot_be_named_are_passed_over(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    if world.store.dialect == "postgres":
        return  # where an id is a uuid
    work = world.task()
    world.app.enqueue_many([work.job(n) for n in range(450)])
    world.sql("UPDATE perdure.job SET priority = 5, id = CAST(x'fffe' || substr(id, 3) AS text)")
    job = work.enqueue()
    with caplog.at_level(logging.ERROR, "perdure.worker"):
        assert ids(world.claim(1)) == [job.id]
    assert len(caplog.messages) == 3 * 11
    assert world.claim(1) == []


def test_claims_by_order_and_by_priority_hold_around_it(world: World) -> None:
    low, high = world.task("low", queue="low"), world.task("high", queue="high")
    jobs = [low.using(priority=5).enqueue(), high.enqueue(), low.enqueue(), high.using(priority=9).enqueue()]
    damaged = high.using(priority=10).enqueue()
    damage(world, damaged, "token")
    batch = world.operations.claim(world.worker, tasks=["high", "low"], n=3, queues=["low", "high"])
    assert ids(batch) == ids([jobs[0], jobs[2], jobs[3]])
    assert ids(world.claim(5)) == [jobs[1].id]


def test_a_paused_queue_and_a_retired_worker_take_nothing_around_it(world: World) -> None:
    work = world.task()
    damaged, job = work.enqueue(), work.enqueue()
    damage(world, damaged, "token")
    world.task("other", queue="still").enqueue()
    world.app.pause_queue("still")
    worker = world.worker
    world.operations.retire(worker)
    assert world.claim(5) == []
    world.new_worker()
    assert ids(world.claim(5)) == [job.id]


@pytest.mark.usefixtures("window_first")
def test_it_is_found_in_front_too(world: World) -> None:
    work = world.task()
    jobs = world.app.enqueue_many([work.job(n) for n in range(6)])
    assert ids(world.claim(2)) == ids(jobs[:2])
    damage(world, jobs[3], "payload")
    assert ids(world.claim(4)) == ids([jobs[2], *jobs[4:]])


@pytest.mark.parametrize("column", ["run", "throttles", "snoozes", "crashes"])
def test_an_outcome_is_recorded_though_a_counter_is_full(world: World, column: str) -> None:
    work = world.task(max_attempts=9)
    jobs = world.app.enqueue_many([work.job(n) for n in range(5)])
    a, b, c, d, e = (job.lease for job in world.claim(5))
    world.sql(f"UPDATE perdure.job SET {column} = :n", n=highest(world))
    finished = world.finish(
        Succeeded(a, "1"), Failed(b, "panic"), Snoozed(c, 1), Throttled(d, 1), Continued(e)
    )
    assert len(finished.accepted) == 5
    assert [world.row(job).state for job in jobs] == ["succeeded", *["ready"] * 4]


@pytest.mark.parametrize("way", ["success", "failure", "rescue", "expiry", "gate"])
def test_a_step_without_its_workflow_ends_as_any_job(flow: Flow, way: str) -> None:
    world = flow.world
    flow.start(flow.of(gate=[], b=["gate"]) if way == "gate" else flow.of(a=[], b=["a"]))
    beside = flow.work.enqueue()
    if way in ("expiry", "gate"):
        soon = "expires_at = run_at" if way == "expiry" else "timeout = 1"
        world.sql(f"UPDATE perdure.job SET {soon} WHERE step_key IN ('a', 'gate')")
    world.sql("DELETE FROM perdure.workflow")
    if way in ("expiry", "gate"):
        world.advance(1)
        assert world.operations.expire() == 1
    else:
        jobs = world.claim(2)
        if way == "rescue":
            assert len(world.lose_worker()) == 2
            jobs = world.claim(2)
        ends = [
            Failed(job.lease, "fatal")
            if way == "failure"
            else Succeeded(job.lease, "1", workflow=job.workflow_id)
            for job in jobs
        ]
        assert len(world.finish(*ends).accepted) == 2
        assert world.row(beside).state in ("succeeded", "failed")
    ended = dict(world.sql("SELECT step_key, state FROM perdure.job WHERE workflow_id IS NOT NULL"))
    assert ended.pop("b") in ("ready", "canceled")
    assert [*ended.values()] == [
        {"success": "succeeded", "rescue": "succeeded", "expiry": "canceled"}.get(way, "failed")
    ]


@pytest.mark.parametrize("counts", ["waiting = 0, active = 0", "waiting = 2147483647, spoiled = 2147483647"])
def test_a_workflow_whose_counts_are_wrong_stops_no_outcome(flow: Flow, counts: str) -> None:
    started = flow.start(flow.of(a=[], b=["a"]))
    beside = flow.work.enqueue()
    jobs = flow.claim()
    flow.world.sql(f"UPDATE perdure.workflow SET {counts}")
    finished = flow.world.finish(
        *(Succeeded(job.lease, "7", workflow=started.id if job.workflow_id else None) for job in jobs)
    )
    assert (len(finished.accepted), [*finished.instead]) == (2, [])
    assert flow.world.row(beside).state == "succeeded"
    assert flow.states(started) == {"a": "succeeded", "b": "ready"}


@pytest.mark.parametrize(
    "bad", ["delay = :most", "delay = -:most", "deps_unsatisfied = :count", "deps_pending = -:count"]
)
def test_a_child_with_values_out_of_bounds_stops_no_outcome_of_its_parent(flow: Flow, bad: str) -> None:
    started = flow.start(flow.of(a=[], b=["a"]))
    bounds = {"most": 2**63 - 1, "count": 2**31 - 1}
    name = bad.rpartition(":")[2]
    flow.world.sql(f"UPDATE perdure.job SET {bad} WHERE step_key = 'b'", **{name: bounds[name]})
    assert flow.run() == ["a"]
    assert flow.states(started)["a"] == "succeeded"


def claim_five(world: World) -> tuple[list[Job[Any]], list[Lease]]:
    work = world.task()
    jobs = world.app.enqueue_many(
        [work.using(tenant=POISON).job() if n == 2 else work.job() for n in range(5)]
    )
    return jobs, [job.lease for job in world.claim(5)]


@pytest.mark.parametrize("code", CODES[:4])
def test_an_outcome_that_the_database_refuses_is_to_be_told_again(
    world: World, caplog: pytest.LogCaptureFixture, code: str
) -> None:
    jobs, leases = claim_five(world)
    world.poison(code)
    with caplog.at_level(logging.ERROR, "perdure.worker"):
        finished = world.finish(*(Succeeded(lease, "1") for lease in leases))
        assert finished.refused == []
        assert finished.accepted == [*leases[:2], *leases[3:]]
        again = world.finish(Succeeded(leases[2], "1"))
        assert (again.accepted, again.refused) == ([], [])
    (said,) = caplog.messages
    assert jobs[2].id in said
    world.cure()
    assert world.finish(Succeeded(leases[2], "1")).accepted == [leases[2]]
    assert (world.row(jobs[2]).state, world.row(jobs[2]).result) == ("succeeded", "1")


@pytest.mark.parametrize("code", ["P0001", "23514"])
def test_outcomes_that_all_fail_alike_are_to_be_told_again(
    world: World, caplog: pytest.LogCaptureFixture, code: str
) -> None:
    work = world.task()
    jobs = world.app.enqueue_many([work.using(tenant=POISON).job() for _ in range(30)])
    leases = [job.lease for job in world.claim(30)]
    world.poison(code)
    with caplog.at_level(logging.ERROR, "perdure.worker"):
        finished = world.finish(*(Succeeded(lease, "1") for lease in leases))
    assert (finished.accepted, finished.refused) == ([], [])
    assert len(caplog.messages) == 11
    world.cure()
    assert len(world.finish(*(Succeeded(lease, "1") for lease in leases)).accepted) == len(jobs)


def test_an_outcome_that_its_row_never_takes_is_kept_and_stops_no_other(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    if world.store.dialect == "sqlite":
        return  # which has no constraint that holds for new versions of rows alone
    monkeypatch.setattr("perdure.worker.damaged_rows.KEEP_FOR", 0.0)
    jobs, leases = claim_five(world)
    world.poison("23514")
    with caplog.at_level(logging.ERROR, "perdure.worker"):
        finished = world.finish(*(Succeeded(lease, "1") for lease in leases))
        assert (finished.refused, finished.accepted) == ([], [*leases[:2], *leases[3:]])
        for _ in range(2):
            again = world.finish(Succeeded(leases[2], "1"))
            assert (again.accepted, again.refused) == ([], []), "nor as a failure"
    (said,) = caplog.messages
    assert jobs[2].id in said
    batch: Batch = world.claim(1)
    assert batch == []
    world.cure()
    assert world.finish(Succeeded(leases[2], "1")).accepted == [leases[2]]


def test_texts_that_are_not_utf_8_are_read_as_far_as_they_go(world: World) -> None:
    if world.store.dialect == "postgres":
        return  # which refuses them when they are written
    job = world.task().using(tags=["x"]).enqueue(note="fine")
    world.sql("UPDATE perdure.job SET stage = CAST(x'ff41' AS text), error_message = CAST(x'42ff' AS text)")
    world.sql(
        "INSERT INTO perdure.event (job, run, token, kind, at) VALUES (:id, 1, 0, CAST(x'ff' AS text), 0)",
        id=job.id,
    )
    row = world.row(job)
    assert (row.stage, row.error_message, row.task) == ("\ufffdA", "B\ufffd", "work")
    assert [event.kind for event in world.events(job)] == ["\ufffd"]
    assert world.claim_one().id == job.id, "a claim reads none of them"


def test_a_worker_whose_lease_is_out_of_bounds_still_beats(world: World) -> None:
    world.sql("UPDATE perdure.worker SET lease = :most", most=2**63 - 1)
    assert world.operations.heartbeat(world.worker).live
