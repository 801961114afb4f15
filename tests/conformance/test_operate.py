"""An operator's actions on a job: each checks the job's state and returns what it did."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure.model.job import SECOND
from perdure.model.lifecycle import Canceled, Failed, Report, Snoozed, Succeeded
from tests.conformance.world import NOON, World, ids

NOBODY = "0198a1b2-0000-7000-8000-000000000000"


def detail(world: World, job: Any) -> dict[str, Any]:
    """Of the last event."""
    event = world.events(job)[-1]
    return {"kind": event.kind, **(json.loads(event.detail) if event.detail else {})}


@pytest.mark.parametrize("verb", ["cancel_job", "requeue_job", "run_now", "delete_job"])
def test_there_is_nothing_to_do_for_a_job_that_is_not_there(world: World, verb: str) -> None:
    assert getattr(world.app, verb)(NOBODY) == "not_found"
    assert (world.count("event"), world.woken) == (0, [])


def test_cancel_ends_a_job_that_waits(world: World) -> None:
    work = world.task()
    ready, later = work.enqueue(), work.using(delay=60).enqueue()
    retrying = work.using(priority=1).enqueue()
    world.attempt(Failed, "error", message="first", delay=60 * SECOND)
    world.advance(1)
    for job in (ready, later, retrying):
        assert world.app.cancel_job(job.id, reason="withdrawn", by="ann") == "canceled"
        row = world.row(job)
        assert (row.state, row.reason, row.finished_at) == ("canceled", "withdrawn", NOON + SECOND)
        assert detail(world, job) == {"kind": "canceled", "reason": "withdrawn", "by": "ann"}
    assert world.row(retrying).error_message == "first", "how the last attempt failed is still known"
    world.advance(99)
    assert world.claim(9) == []


@pytest.mark.parametrize("state", ["waiting", "open"])
def test_cancel_ends_a_job_that_waits_for_others(world: World, state: str) -> None:
    job = world.task().enqueue()
    world.sql("UPDATE perdure.job SET state = :state", state=state)
    assert world.app.cancel_job(job.id) == "canceled"


def test_cancel_asks_a_running_job_to_stop(world: World) -> None:
    job = world.task().enqueue()
    claimed = world.claim_one()
    world.advance(1)
    assert world.app.cancel_job(job.id, reason="first") == "cancel_requested"
    world.advance(1)
    assert world.app.cancel_job(job.id, reason="second") == "cancel_requested"
    row = world.row(job)
    assert (row.state, row.worker, row.finished_at) == ("running", world.worker, None)
    assert (row.cancel_requested_at, row.reason) == (NOON + SECOND, "first"), "the first request counts"
    assert [event.kind for event in world.events(job)] == ["cancel requested"] * 2
    assert world.operations.heartbeat(world.worker).cancel_requested == [claimed.lease]


def test_cancel_finds_what_has_ended_already(world: World) -> None:
    work = world.task()
    for end in (Succeeded, lambda lease: Failed(lease, "fatal"), lambda lease: Canceled(lease, "enough")):
        job = work.enqueue()
        world.attempt(end)
        before = world.row(job)
        assert world.app.cancel_job(job.id, reason="late") == "already_ended"
        assert (world.row(job), world.events(job)) == (before, [])


def test_requeue_starts_a_new_run_of_what_failed_or_was_canceled(world: World) -> None:
    work = world.task()
    for end in (lambda lease: Failed(lease, "fatal", message="no"), lambda lease: Canceled(lease, "enough")):
        job = work.enqueue(7)
        world.attempt(end)
        world.advance(1)
        row_before = world.row(job)
        assert world.app.requeue_job(job.id, reason="fixed", by="ann") == "requeued"
        row = world.row(job)
        assert (row.state, row.run, row.attempt, row.token, row.run_at) == ("ready", 2, 0, 1, world.now)
        assert (row.reason, row.error_kind, row.error_message, row.finished_at) == (None, None, None, None)
        was = {"was": row_before.state, "because": row_before.reason}
        assert detail(world, job) == {"kind": "requeued", "reason": "fixed", "by": "ann", **was}
        again = world.claim_one()
        assert (again.id, again.token, again.attempt, again.payload) == (job.id, 2, 1, '{"n":7}')
        world.finish(Succeeded(again.lease))


def test_requeue_takes_back_a_cancel(world: World) -> None:
    job = world.task().enqueue()
    claimed = world.claim_one()
    world.app.cancel_job(job.id)
    world.finish(Failed(claimed.lease, "error"))
    assert world.app.requeue_job(job.id) == "requeued"
    assert world.row(job).cancel_requested_at is None
    world.attempt(Failed, "error")
    assert world.row(job).state == "ready"


def test_requeue_refuses_what_has_not_ended_or_has_succeeded(world: World) -> None:
    job = world.task(backoff=60).enqueue()
    assert world.app.requeue_job(job.id) == "not_ended"
    claimed = world.claim_one()
    assert world.app.requeue_job(job.id) == "still_running"
    world.app.cancel_job(job.id)
    assert world.app.requeue_job(job.id) == "still_running", "also when it was asked to stop"
    world.finish(Succeeded(claimed.lease))
    assert world.app.requeue_job(job.id) == "already_succeeded"
    assert (world.row(job).run, world.attempts(job)) == (1, [])


def test_requeue_of_a_run_that_is_over_is_refused(world: World) -> None:
    job = world.task().enqueue()
    world.attempt(Failed, "fatal")
    assert world.app.requeue_job(job.id, run=2) == "other_run"
    assert world.app.requeue_job(job.id, run=1) == "requeued"
    world.attempt(Failed, "fatal")
    assert world.app.requeue_job(job.id, run=1) == "other_run"
    assert world.app.requeue_job(job.id, run=2) == "requeued"
    assert world.row(job).run == 3


def test_requeue_may_keep_the_checkpoint(world: World) -> None:
    work = world.task()
    for keep in (False, True):
        job = work.enqueue()
        world.attempt(
            Failed, "fatal", report=Report(checkpoint='{"page":7}', stage="s", done=1, total=2, message="m")
        )
        world.app.requeue_job(job.id, keep_checkpoint=keep)
        row = world.row(job)
        assert row.checkpoint == ('{"page":7}' if keep else None)
        assert (row.stage, row.progress_done, row.progress_total, row.progress_message) == (None,) * 4
        dropped = {} if keep else {"checkpoint": '{"page":7}'}
        was = {"was": "failed", "because": "fatal"}
        assert detail(world, job) == {"kind": "requeued", **was, **dropped}, "what is dropped is told"
        assert world.claim_one().checkpoint == row.checkpoint


def test_requeue_is_refused_while_another_job_has_the_unique_key(world: World) -> None:
    work = world.task().using(unique_key="u")
    job = work.enqueue()
    world.attempt(Failed, "fatal")
    other = work.enqueue()
    assert world.app.requeue_job(job.id) == "unique_key_taken"
    assert (world.row(job).state, world.row(job).run) == ("failed", 1)
    world.app.cancel_job(other.id)
    assert world.app.requeue_job(job.id) == "requeued"
    assert world.app.requeue_job(other.id) == "unique_key_taken"


def test_requeue_puts_the_last_attempt_into_the_ledger_once(world: World) -> None:
    job = world.task(backoff=0).enqueue()
    world.attempt(Failed, "error", message="first")
    world.attempt(Snoozed, 0)
    world.app.cancel_job(job.id)
    world.app.requeue_job(job.id)
    told = [(1, 1, 1, "error"), (2, 1, 2, "snoozed")]
    assert [(a.token, a.run, a.attempt, a.kind) for a in world.attempts(job)] == told
    world.attempt(Failed, "fatal", message="second", trace="at line 2")
    world.app.requeue_job(job.id)
    last = world.attempts(job)[-1]
    assert (last.token, last.run, last.attempt, last.kind) == (3, 2, 1, "fatal")
    assert (last.message, last.trace, last.started_at, last.finished_at) == (
        "second",
        "at line 2",
        NOON,
        NOON,
    )


def test_run_now_lets_a_job_be_due(world: World) -> None:
    work = world.task(backoff=60)
    later = work.using(delay=60).enqueue()
    assert world.app.run_now(later.id, by="ann") == "due_now"
    assert world.row(later).run_at == NOON
    assert detail(world, later) == {"kind": "run now", "by": "ann"}
    assert world.app.run_now(later.id) == "already_due"
    world.attempt(Failed, "error", delay=SECOND)
    assert world.app.run_now(later.id) == "due_now", "also a job that waits for its retry"
    assert ids(world.claim()) == [later.id]
    assert world.app.run_now(later.id) == "not_ready"
    assert len(world.events(later)) == 2, "a refusal leaves no event"


def test_delete_leaves_nothing(world: World) -> None:
    job = world.task(backoff=0).using(idempotency_key="k").enqueue()
    world.attempt(Failed, "error", report=Report(stage="s"))
    world.app.cancel_job(job.id)
    assert world.app.delete_job(job.id) == "deleted"
    assert {table: world.count(table) for table in ("job", "key", "attempt", "event", "log")} == {
        "job": 0,
        "key": 0,
        "attempt": 0,
        "event": 0,
        "log": 0,
    }
    assert world.app.delete_job(job.id) == "not_found"


def test_delete_takes_any_job_that_does_not_run(world: World) -> None:
    work = world.task()
    for end in (Succeeded, lambda lease: Failed(lease, "error"), lambda lease: Failed(lease, "fatal")):
        job, other = work.using(priority=1).enqueue(), work.using(delay=9).enqueue()
        world.attempt(end)
        assert world.app.delete_job(job.id) == "deleted"
        assert world.row(other).state == "ready", "and no other"


def test_delete_of_a_running_job_asks_it_to_stop(world: World) -> None:
    job = world.task().enqueue()
    claimed = world.claim_one()
    assert world.app.delete_job(job.id) == "cancel_requested"
    assert (world.row(job).state, world.row(job).reason) == ("running", "deleted")
    world.finish(Failed(claimed.lease, "error"))
    assert world.row(job).state == "canceled"
    assert world.app.delete_job(job.id) == "deleted"
