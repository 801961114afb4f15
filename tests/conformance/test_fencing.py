"""Fencing: who may write about a running job, and until when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perdure.model.job import JobRow, Lease
from perdure.model.lifecycle import (
    Canceled,
    Continued,
    Failed,
    Outcome,
    Released,
    Report,
    Snoozed,
    Succeeded,
    Throttled,
)
from perdure.ops.report import JobReport, LogLine
from tests.conformance.flow import Flow, outcome
from tests.conformance.world import World

ENDINGS: dict[str, Callable[[Lease], Outcome]] = {
    "success": lambda lease: Succeeded(lease, "1"),
    "reported success": lambda lease: Succeeded(lease, "1", None, Report(done=1)),
    "error": lambda lease: Failed(lease, "error"),
    "fatal": lambda lease: Failed(lease, "fatal"),
    "timeout": lambda lease: Failed(lease, "timeout"),
    "panic": lambda lease: Failed(lease, "panic"),
    "interrupted": lambda lease: Failed(lease, "interrupted"),
    "snooze": lambda lease: Snoozed(lease, 5),
    "throttle": lambda lease: Throttled(lease, 5),
    "continue": lambda lease: Continued(lease),
    "cancel": lambda lease: Canceled(lease, "enough"),
    "release": lambda lease: Released(lease),
}
SUCCESSES = {"success", "reported success"}


def start(world: World, **options: Any) -> dict[str, Lease]:
    """One running job for each outcome, each in its own queue."""
    work = world.task(**options)
    world.app.enqueue_many([work.using(queue=ending).job() for ending in ENDINGS])
    return claim_all(world)


def claim_all(world: World) -> dict[str, Lease]:
    return {job.queue: job.lease for job in world.claim(len(ENDINGS))}


def finish_all(world: World, leases: dict[str, Lease]) -> dict[str, str]:
    """Send each outcome in a separate call; return which were accepted."""
    received = {}
    for ending, lease in leases.items():
        finished = world.finish(ENDINGS[ending](lease))
        assert [*finished.accepted, *finished.refused] == [lease]
        received[ending] = "accepted" if finished.accepted else "refused"
    return received


def rows(world: World, leases: dict[str, Lease]) -> dict[str, JobRow]:
    return {ending: world.row(lease.job) for ending, lease in leases.items()}


def all_are(word: str) -> dict[str, str]:
    return dict.fromkeys(ENDINGS, word)


def test_outcomes_are_refused_after_a_rescue_even_if_nobody_claimed(world: World) -> None:
    leases = start(world)
    world.lose_worker()
    before = rows(world, leases)
    assert finish_all(world, leases) == all_are("refused")
    assert rows(world, leases) == before


def test_outcomes_are_refused_after_another_claim(world: World) -> None:
    leases = start(world)
    world.lose_worker()
    claim_all(world)
    before = rows(world, leases)
    assert finish_all(world, leases) == all_are("refused")
    assert rows(world, leases) == before
    assert {row.state for row in before.values()} == {"running"}


def test_late_outcomes_are_accepted_until_the_rescue(world: World) -> None:
    leases = start(world)
    world.advance(3600)
    assert finish_all(world, leases) == all_are("accepted")


def test_late_outcomes_are_accepted_from_a_retired_worker_whose_jobs_nobody_freed(world: World) -> None:
    leases = start(world)
    world.operations.retire(world.worker)
    assert finish_all(world, leases) == all_are("accepted")
    assert world.rescue() == []


def test_outcomes_that_were_recorded_already_count_as_accepted(world: World) -> None:
    leases = start(world)
    finish_all(world, leases)
    before = rows(world, leases), world.count("attempt")
    assert finish_all(world, leases) == all_are("accepted")
    assert (rows(world, leases), world.count("attempt")) == before, "and are not recorded twice"


def test_a_loss_before_does_not_hide_an_outcome_recorded_since(world: World) -> None:
    start(world)
    world.lose_worker()
    leases = claim_all(world)
    finish_all(world, leases)
    assert finish_all(world, leases) == all_are("accepted")


def test_a_cancel_since_does_not_hide_an_outcome_recorded_before(world: World) -> None:
    start(world)
    world.lose_worker()
    leases = claim_all(world)
    finish_all(world, leases)
    for lease in leases.values():
        world.app.cancel_job(lease.job)
    assert finish_all(world, leases) == all_are("accepted")


def test_outcomes_are_refused_after_a_rescue_that_canceled_the_job(world: World) -> None:
    leases = start(world)
    for lease in leases.values():
        world.app.cancel_job(lease.job)
    world.lose_worker()
    assert {(row.state, row.error_kind) for row in rows(world, leases).values()} == {("canceled", "lost")}
    assert finish_all(world, leases) == all_are("refused")
    for lease in leases.values():
        world.app.requeue_job(lease.job)
    assert finish_all(world, leases) == all_are("refused"), "also after a requeue"


def test_outcomes_are_refused_after_a_rescue_that_failed_the_job(world: World) -> None:
    leases = start(world, max_attempts=1)
    world.lose_worker()
    assert {row.state for row in rows(world, leases).values()} == {"failed"}
    assert finish_all(world, leases) == all_are("refused")


def test_under_a_cancel_every_ending_but_a_success_ends_the_job(world: World) -> None:
    leases = start(world)
    for lease in leases.values():
        assert world.app.cancel_job(lease.job, reason="by hand") == "cancel_requested"
    assert finish_all(world, leases) == all_are("accepted")
    for ending, row in rows(world, leases).items():
        if ending in SUCCESSES:
            assert (row.state, row.result, row.reason) == ("succeeded", "1", None), "the effect happened"
        else:
            assert (row.state, row.reason, row.finished_at) == ("canceled", "by hand", world.now), ending
    assert (world.claim(9), world.count("attempt")) == ([], 0)


def test_a_stale_lease_beside_the_live_one_is_still_refused(world: World) -> None:
    job = world.task().enqueue()
    stale = world.claim_one().lease
    world.lose_worker()
    live = world.claim_one().lease
    assert world.finish(Succeeded(stale, '"old"'), Succeeded(live, '"new"'))[:2] == ([live], [stale])
    assert world.row(job).result == '"new"'


def test_a_stale_success_is_refused_beside_a_live_one_with_another_result(world: World) -> None:
    """Successes whose results differ are written by a statement of their own."""
    work = world.task()
    work.enqueue()
    stale = world.claim_one().lease
    world.lose_worker()
    work.enqueue()
    again, live = (job.lease for job in world.claim(2))
    before = world.row(stale.job)
    assert world.finish(Succeeded(stale, '"old"'), Succeeded(live, '"new"'))[:2] == ([live], [stale])
    assert world.row(stale.job) == before
    assert (again.job, before.state, before.result) == (stale.job, "running", None)
    assert world.row(live.job).result == '"new"'


def test_a_stale_success_of_a_step_neither_ends_it_nor_releases_its_children(flow: Flow) -> None:
    started = flow.start(flow.of(a=[], b=["a"]))
    (stale,) = flow.claim()
    flow.world.lose_worker()
    (live,) = flow.claim()
    assert flow.world.finish(outcome(stale))[:2] == ([], [stale.lease])
    assert flow.states(started) == {"a": "running", "b": "waiting"}
    assert flow.status(started) == "running"
    assert flow.world.finish(outcome(live))[:2] == ([live.lease], [])
    assert flow.states(started) == {"a": "succeeded", "b": "ready"}


def test_outcomes_of_a_deleted_job_are_refused(world: World) -> None:
    leases = start(world)
    world.sql("DELETE FROM perdure.job")
    assert finish_all(world, leases) == all_are("refused")


def test_a_lease_has_one_outcome_the_first_that_was_told(world: World) -> None:
    job = world.task().enqueue()
    lease = world.claim_one().lease
    assert world.finish(Succeeded(lease, "1"), Failed(lease, "fatal")).refused == []
    assert world.row(job).state == "succeeded"
    assert world.attempts(job) == []


@pytest.mark.parametrize("lost", [False, True])
def test_a_report_needs_the_lease(world: World, lost: bool) -> None:
    job = world.task().enqueue()
    lease = world.claim_one().lease
    if lost:
        world.lose_worker()
    said = JobReport(
        lease, Report(stage="s", done=1, total=2, message="m", checkpoint="1"), [LogLine("info", "hi")]
    )
    assert world.operations.report([said]) == ["lease lost" if lost else "ok"]
    row = world.row(job)
    assert (row.stage, row.progress_done, row.checkpoint) == ((None, None, None) if lost else ("s", 1, "1"))
    assert len(world.logs(job)) == len(world.events(job)) == (0 if lost else 1)
