"""What each outcome does to its job: the row, the ledger of attempts, the counters."""

from __future__ import annotations

import pytest

from perdure.model.job import SECOND
from perdure.model.lifecycle import (
    Canceled,
    Continued,
    Failed,
    FailureKind,
    Released,
    Report,
    Snoozed,
    Succeeded,
    Throttled,
)
from perdure.ops.finish import PUT_OFF_KEPT
from tests.conformance.world import NOON, World, ids


@pytest.mark.parametrize("report", [None, Report(done=1, total=1)])
def test_a_success_is_told_by_the_row(world: World, report: Report | None) -> None:
    job = world.task().enqueue()
    world.advance(1)
    claimed = world.claim_one()
    world.advance(2)
    assert world.finish(Succeeded(claimed.lease, "7", "large", report))[:2] == ([claimed.lease], [])
    row = world.row(job)
    assert (row.state, row.result, row.reason, row.attempt) == ("succeeded", "7", "large", 1)
    assert (row.worker, row.error_kind, row.token) == (None, None, 1)
    assert (row.started_at, row.finished_at) == (NOON + SECOND, NOON + 3 * SECOND)
    assert world.attempts(job) == []


def test_a_result_is_kept_as_it_was_told(world: World) -> None:
    work = world.task()
    for result in (None, "null", "0", "[]", '""', '{"b":1e16,"a":[null,"é\\u0001"]}', "1e400", '" x "'):
        for report in (None, Report(done=1)):
            job = work.enqueue()
            world.attempt(Succeeded, result, None, report)
            assert world.row(job).result == result


@pytest.mark.parametrize("report", [None, Report(done=1)])
def test_a_success_leaves_nothing_of_the_failure_before(world: World, report: Report | None) -> None:
    job = world.task(backoff=0).enqueue()
    world.attempt(Failed, "error", code="x", message="m", trace="t")
    world.attempt(Succeeded, "1", report=report)
    row = world.row(job)
    assert (row.state, row.attempt) == ("succeeded", 2)
    assert (row.error_kind, row.error_code, row.error_message, row.error_trace) == (None, None, None, None)


@pytest.mark.parametrize("kind", ["error", "timeout", "panic"])
def test_a_failure_is_tried_again_later(world: World, kind: FailureKind) -> None:
    job = world.task(backoff=10).enqueue()
    claimed = world.claim_one()
    world.advance(1)
    world.finish(Failed(claimed.lease, kind, message="no", trace="at line 1"))
    row = world.row(job)
    assert (row.state, row.attempt, row.run, row.worker) == ("ready", 1, 1, None)
    assert (row.error_kind, row.error_code) == (kind, f"job.{kind}")
    assert (row.error_message, row.error_trace) == ("no", "at line 1")
    assert (row.started_at, row.finished_at) == (None, None)
    assert NOON + SECOND <= row.run_at < NOON + 11 * SECOND
    (attempt,) = world.attempts(job)
    assert (attempt.token, attempt.run, attempt.attempt, attempt.kind) == (1, 1, 1, kind)
    assert (attempt.code, attempt.message, attempt.trace) == (f"job.{kind}", "no", "at line 1")
    assert (attempt.started_at, attempt.finished_at) == (NOON, NOON + SECOND)
    assert (attempt.worker, attempt.decided_by) == (world.worker, "policy")
    assert attempt.delay == row.run_at - NOON - SECOND


@pytest.mark.parametrize("kind", ["error", "timeout", "panic", "lost"])
def test_the_last_attempt_is_the_last(world: World, kind: FailureKind) -> None:
    job = world.task(max_attempts=2, backoff=0).enqueue()
    world.attempt(Failed, kind)
    assert world.row(job).state == "ready"
    world.attempt(Failed, kind, message="again")
    row = world.row(job)
    assert (row.state, row.reason, row.attempt, row.error_message) == ("failed", "attempts", 2, "again")
    assert row.finished_at == NOON
    assert [attempt.token for attempt in world.attempts(job)] == [1], "the row tells the last one"


def test_one_attempt_may_be_all_there_is(world: World) -> None:
    job = world.task(max_attempts=1).enqueue()
    world.attempt(Failed, "error")
    assert (world.row(job).state, world.row(job).reason) == ("failed", "attempts")


def test_a_fatal_failure_ends_the_job_at_once(world: World) -> None:
    job = world.task().enqueue()
    world.attempt(Failed, "fatal", code="bad.input", message="no")
    row = world.row(job)
    assert (row.state, row.reason, row.error_kind, row.error_code) == (
        "failed",
        "fatal",
        "fatal",
        "bad.input",
    )
    assert world.attempts(job) == []


def test_a_new_failure_takes_nothing_from_the_one_before(world: World) -> None:
    job = world.task(backoff=0).enqueue()
    world.attempt(Failed, "error", code="x", message="first", trace="at line 1")
    world.attempt(Failed, "timeout")
    row = world.row(job)
    assert (row.error_kind, row.error_code, row.error_message, row.error_trace) == (
        "timeout",
        "job.timeout",
        "",
        None,
    )


def test_a_snooze_costs_no_attempt(world: World) -> None:
    job = world.task().enqueue()
    world.attempt(Snoozed, 5 * SECOND)
    row = world.row(job)
    assert (row.state, row.attempt, row.token, row.snoozes) == ("ready", 0, 1, 1)
    assert (row.run_at, row.error_kind, row.started_at) == (NOON + 5 * SECOND, None, None)


def test_a_throttle_costs_no_attempt(world: World) -> None:
    job = world.task().enqueue()
    world.attempt(Throttled, 5 * SECOND)
    row = world.row(job)
    assert (row.state, row.attempt, row.throttles, row.snoozes) == ("ready", 0, 1, 0)
    assert row.run_at == NOON + 5 * SECOND


def test_of_what_was_put_off_the_last_hundred_are_kept_and_of_what_failed_all(world: World) -> None:
    job = world.task(backoff=0.001, max_attempts=99).enqueue()
    world.attempt(Snoozed, 0)
    world.attempt(Failed, "error")
    world.advance(1)
    for _ in range(PUT_OFF_KEPT // 2 + 1):
        world.attempt(Snoozed, 0)
        world.attempt(Throttled, 0, False)
    assert [attempt.token for attempt in world.attempts(job)] == [2, *range(5, PUT_OFF_KEPT + 5)]
    assert world.row(job).snoozes + world.row(job).throttles == PUT_OFF_KEPT + 3


def test_a_released_claim_is_as_if_it_had_never_been(world: World) -> None:
    job = world.task(max_attempts=1).enqueue()
    world.attempt(Released)
    row = world.row(job)
    assert (row.state, row.attempt, row.token, row.run_at) == ("ready", 0, 1, NOON)
    assert (row.snoozes, row.throttles, row.crashes, row.started_at) == (0, 0, 0, None)
    assert world.attempts(job) == []
    world.attempt(Released, SECOND)
    assert world.row(job).run_at == NOON + SECOND


def test_an_interrupted_attempt_is_told_but_does_not_count(world: World) -> None:
    job = world.task(max_attempts=1).enqueue()
    world.attempt(Failed, "interrupted", message="interruption")
    row = world.row(job)
    assert (row.state, row.attempt, row.run_at, row.crashes) == ("ready", 0, NOON, 0)
    (attempt,) = world.attempts(job)
    assert (attempt.kind, attempt.attempt, attempt.delay) == ("interrupted", 1, 0)
    assert attempt.decided_by == "interruption"
    world.attempt(Succeeded)
    assert world.row(job).attempt == 1


@pytest.mark.parametrize(
    "pause", [lambda lease: Snoozed(lease, 0), lambda lease: Throttled(lease, 0, cool_queue=False), Released]
)
def test_what_does_not_count_leaves_the_error_before_it(world: World, pause) -> None:
    job = world.task(backoff=0).enqueue()
    world.attempt(Failed, "error", message="first", trace="at line 1")
    world.attempt(pause)
    row = world.row(job)
    assert (row.attempt, row.error_kind, row.error_message, row.error_trace) == (
        1,
        "error",
        "first",
        "at line 1",
    )


def test_a_continuation_is_a_success_and_a_new_run(world: World) -> None:
    job = world.task(backoff=0).enqueue()
    world.attempt(Failed, "panic", message="first")
    claimed = world.claim_one()
    world.advance(1)
    world.finish(Continued(claimed.lease, 5 * SECOND, Report(checkpoint='{"page":2}')))
    row = world.row(job)
    assert (row.state, row.run, row.attempt, row.crashes) == ("ready", 2, 0, 0)
    assert (row.run_at, row.checkpoint, row.result) == (NOON + 6 * SECOND, '{"page":2}', None)
    assert row.error_kind is None, "a new run begins clean"
    attempt = world.attempts(job)[-1]
    assert (attempt.run, attempt.attempt, attempt.kind, attempt.decided_by) == (1, 2, "continued", "handler")
    world.advance(5)
    again = world.claim_one()
    assert (again.run, again.attempt, again.checkpoint) == (2, 1, '{"page":2}')


def test_a_handler_may_give_up_on_purpose(world: World) -> None:
    job = world.task(backoff=0).enqueue()
    world.attempt(Failed, "error", message="first")
    world.attempt(Canceled, "not needed any more")
    row = world.row(job)
    assert (row.state, row.reason, row.attempt) == ("canceled", "not needed any more", 2)
    assert (row.error_kind, row.finished_at) == (None, NOON), "it did not fail this time"
    assert [attempt.token for attempt in world.attempts(job)] == [1]


def test_many_outcomes_of_every_kind_are_one_batch(world: World) -> None:
    work = world.task()
    jobs = world.app.enqueue_many([work.job() for _ in range(10)])
    leases = [claimed.lease for claimed in world.claim(10)]
    world.sql("DELETE FROM perdure.job WHERE id = :id", id=jobs[3].id)
    finished = world.finish(
        Failed(leases[9], "error"),
        Succeeded(leases[0], "1"),
        Succeeded(leases[1], "2", None, Report(done=1)),
        Failed(leases[2], "fatal"),
        Succeeded(leases[3], "gone"),
        Snoozed(leases[4], SECOND),
        Throttled(leases[5], SECOND),
        Continued(leases[6]),
        Canceled(leases[7], "enough"),
        Released(leases[8]),
    )
    assert sorted(finished.accepted) == sorted(set(leases) - {leases[3]})
    assert finished.refused == [leases[3]]
    rest = [job for job in jobs if job.id != jobs[3].id]
    assert [world.row(job).state for job in rest] == [
        "succeeded",
        "succeeded",
        "failed",
        "ready",
        "ready",
        "ready",
        "canceled",
        "ready",
        "ready",
    ]
    assert (world.row(jobs[0]).result, world.row(jobs[1]).result) == ("1", "2")


def test_a_cycle_finishes_and_claims_in_one_transaction(world: World) -> None:
    work = world.task()
    jobs = world.app.enqueue_many([work.job() for _ in range(5)])
    first = world.claim(2)
    finished, claimed = world.operations.cycle(
        world.worker, [Succeeded(first[0].lease), Released(first[1].lease)], tasks=["work"], n=2
    )
    assert sorted(finished.accepted) == sorted(job.lease for job in first)
    assert ids(claimed) == ids([jobs[1], jobs[2]]), "what was given back is due again"
    finished, claimed = world.operations.cycle(world.worker, [], tasks=["work"], n=9, queues=["default"])
    assert finished[:2] == ([], [])
    assert ids(claimed) == ids(jobs[3:])
    lease = claimed[0].lease
    for n, tasks, queues in ((0, ["work"], None), (9, [], None), (9, ["work"], [])):
        finished, claimed = world.operations.cycle(
            world.worker, [Succeeded(lease)], tasks=tasks, n=n, queues=queues
        )
        assert (finished.accepted, claimed) == ([lease], []), "finished, or known to be"


@pytest.mark.parametrize("n", [20, pytest.param(300, marks=[pytest.mark.long, pytest.mark.timeout(600)])])
def test_results_as_large_as_allowed_are_finished_together(world: World, n: int) -> None:
    """Also where all of them are more than a database takes in one value."""
    work = world.task()
    world.app.enqueue_many([work.job() for _ in range(n)])
    leases = [job.lease for job in world.claim(n)]
    result = '"' + "x" * ((1 << 20) - 2) + '"'
    report = Report(done=1)
    finished = world.finish(
        *(Succeeded(lease, result) for lease in leases[3:]),
        *(Succeeded(lease, result, report=report) for lease in leases[:3]),
    )
    assert sorted(finished.accepted) == sorted(leases)
    assert world.sql("SELECT count(*) FROM perdure.job WHERE length(CAST(result AS text)) = 1048576") == [
        (n,)
    ]
