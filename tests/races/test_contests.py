"""Two processes act differently on one job at the same moment: the promises hold, whichever is first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from perdure.model.job import JobRow, Lease
from perdure.model.lifecycle import Continued, Failed, Outcome, Released, Snoozed, Succeeded, Throttled
from perdure.ops import browse, finish, job_actions
from perdure.store.store import Store
from perdure.worker.operations import WorkerOperations
from tests.races.roles import TASK, hire, open_operations, prepare, send
from tests.races.threads import at_once

ROUNDS = 25

Sides = tuple[WorkerOperations, WorkerOperations]

RETURNS: list[Callable[[Lease], Outcome]] = [
    lambda lease: Failed(lease, "error"),
    lambda lease: Snoozed(lease, 0),
    lambda lease: Throttled(lease, 0, cool_queue=False),
    Continued,
    Released,
]
"""After these a job would run again."""


@pytest.fixture(params=["one connection pool", "two connection pools"])
def sides(request: pytest.FixtureRequest, url: str) -> Iterator[Sides]:
    """Two threads of one process, or as good as two processes."""
    left = prepare(url)
    right = left if request.param == "one connection pool" else open_operations(url)
    yield left, right
    left.store.close()
    right.store.close()


def claimed(operations: WorkerOperations, worker: str) -> Lease:
    send(operations.store, 1)
    (job,) = operations.claim(worker, tasks=[TASK], n=1)
    return job.lease


def row_of(store: Store, id: str) -> JobRow:
    row = store.perform(browse.get_job, id)
    assert row is not None
    return row


def record(operations: WorkerOperations, outcome: Outcome) -> bool:
    """Without the second check of ``WorkerOperations.finish``, which accepts an outcome that is recorded already."""
    return bool(operations.store.perform(finish.finish, [outcome], jitter=lambda: 0.5).accepted)


def test_of_two_outcomes_under_one_lease_one_changes_the_row(sides: Sides) -> None:
    left, right = sides
    worker = hire(left)
    for _ in range(ROUNDS):
        lease = claimed(left, worker)
        won = at_once(
            partial(record, left, Succeeded(lease, result='"left"')),
            partial(record, right, Succeeded(lease, result='"right"')),
        )
        assert sorted(won) == [False, True]
        assert row_of(left.store, lease.job).result == ('"left"' if won[0] else '"right"')


def test_of_a_success_and_a_failure_under_one_lease_one_changes_the_row(sides: Sides) -> None:
    left, right = sides
    worker = hire(left)
    for _ in range(ROUNDS):
        lease = claimed(left, worker)
        won = at_once(partial(record, left, Succeeded(lease)), partial(record, right, Failed(lease, "fatal")))
        assert sorted(won) == [False, True]
        assert row_of(left.store, lease.job).state == ("succeeded" if won[0] else "failed")


def test_a_lease_told_twice_counts_once_and_both_are_told_so(sides: Sides) -> None:
    left, right = sides
    worker = hire(left)
    for _ in range(ROUNDS):
        lease = claimed(left, worker)
        error = Failed(lease, "error", delay=3_600_000_000)
        answers = at_once(partial(left.finish, [error]), partial(right.finish, [error]))
        assert [answer.accepted for answer in answers] == [[lease], [lease]]
        traces = left.store.perform(browse.trace_job, lease.job)
        assert traces is not None
        assert [attempt.token for attempt in traces.attempts] == [lease.token]


def test_a_job_that_is_canceled_while_it_is_claimed_runs_or_ends_but_never_both(sides: Sides) -> None:
    left, right = sides
    worker = hire(left)
    for _ in range(ROUNDS):
        (id,) = send(left.store, 1)
        cancel, jobs = at_once(
            partial(left.store.perform, job_actions.cancel, id),
            partial(right.claim, worker, tasks=[TASK], n=1),
        )
        row = row_of(left.store, id)
        assert row.cancel_requested_at is not None
        if jobs:
            assert (cancel, row.state) == ("cancel_requested", "running")
            right.finish([Released(jobs[0].lease)])
        assert row_of(left.store, id).state == "canceled"
        assert cancel == ("cancel_requested" if jobs else "canceled")


def test_a_job_that_is_canceled_while_it_ends_never_runs_again(sides: Sides) -> None:
    left, right = sides
    worker = hire(left)
    for n in range(2 * ROUNDS):
        lease = claimed(left, worker)
        end = RETURNS[n % len(RETURNS)](lease)
        cancel, won = at_once(
            partial(left.store.perform, job_actions.cancel, lease.job), partial(record, right, end)
        )
        assert won
        assert cancel in ("canceled", "cancel_requested")
        assert row_of(left.store, lease.job).state == "canceled"


def test_a_job_that_is_canceled_while_it_succeeds_has_succeeded(sides: Sides) -> None:
    left, right = sides
    worker = hire(left)
    for _ in range(ROUNDS):
        lease = claimed(left, worker)
        cancel, won = at_once(
            partial(left.store.perform, job_actions.cancel, lease.job),
            partial(record, right, Succeeded(lease)),
        )
        assert won
        assert cancel in ("already_ended", "cancel_requested")
        assert row_of(left.store, lease.job).state == "succeeded"


def test_a_job_that_is_canceled_while_it_is_rescued_never_runs_again(sides: Sides) -> None:
    left, right = sides
    for _ in range(ROUNDS):
        worker = hire(left)
        lease = claimed(left, worker)
        left.retire(worker)
        cancel, _ = at_once(partial(left.store.perform, job_actions.cancel, lease.job), right.rescue)
        # A sweep skips locked rows; the next one sees them.
        right.rescue()
        assert cancel in ("canceled", "cancel_requested")
        assert row_of(left.store, lease.job).state == "canceled"
