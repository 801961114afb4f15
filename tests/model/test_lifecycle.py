"""The life of a job: every outcome of an attempt changes the job by the rules."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import example, given

from perdure.model.backoff import MAX_DELAY, Backoff
from perdure.model.job import ENDED, MOST_COUNTED, SECOND, State
from perdure.model.lifecycle import (
    FAILURE_CODES,
    TRANSITIONS,
    Canceled,
    Continued,
    Failed,
    FailureKind,
    Outcome,
    Released,
    Running,
    Snoozed,
    Succeeded,
    Throttled,
    settle,
)
from tests.model.lives import (
    KINDS,
    LEASE,
    endings_at_no_cost,
    failures,
    job,
    jobs,
    outcomes,
    rolls,
    successes,
    unsuccessful,
    verb_of,
)

STATES: tuple[State, ...] = get_args(State)


class TestTheTable:
    def test_it_speaks_of_the_states_and_of_no_other(self) -> None:
        assert {state for state, _ in TRANSITIONS} <= {None, *STATES}
        assert set().union(*TRANSITIONS.values()) == set(STATES)

    def test_what_has_ended_is_left_by_a_requeue_only(self) -> None:
        """A success only with its whole workflow."""
        assert {verb for state, verb in TRANSITIONS if state in ENDED} == {"requeue"}

    def test_every_state_that_has_not_ended_can_be_canceled(self) -> None:
        for state in set(STATES) - ENDED:
            assert TRANSITIONS[state, "cancel"] == {"canceled"}

    def test_no_transition_is_left_without_a_state_to_go_to(self) -> None:
        assert all(TRANSITIONS.values())

    @given(jobs(), outcomes, rolls)
    def test_every_change_obeys_it(self, job: Running, outcome: Outcome, roll: float) -> None:
        assert settle(job, outcome, roll=roll).state in TRANSITIONS["running", verb_of(outcome)]

    def test_every_way_out_of_running_is_taken_by_some_ending(self) -> None:
        endings: list[Outcome] = [
            Succeeded(LEASE),
            *(Failed(LEASE, kind) for kind in KINDS),
            Snoozed(LEASE, 1),
            Throttled(LEASE),
            Continued(LEASE),
            Canceled(LEASE, "no"),
            Released(LEASE),
        ]
        taken = {
            (verb_of(ending), settle(job(attempt=attempt, cancel_requested=asked), ending, roll=0).state)
            for ending in endings
            for attempt in (1, 3)
            for asked in (False, True)
        }
        ways = [(verb, targets) for (state, verb), targets in TRANSITIONS.items() if state == "running"]
        assert taken == {(verb, target) for verb, targets in ways for target in targets}


class TestEveryChange:
    @given(jobs(), outcomes, rolls)
    def test_is_written_under_the_lease_it_was_made_from(
        self, job: Running, outcome: Outcome, roll: float
    ) -> None:
        change = settle(job, outcome, roll=roll)
        assert (change.id, change.token) == job.lease

    @given(jobs(), outcomes, rolls)
    @example(job(attempt=10_000, max_attempts=20_000), Failed(LEASE, "error"), 0.999)
    def test_waits_within_bounds_and_only_for_another_attempt(
        self, job: Running, outcome: Outcome, roll: float
    ) -> None:
        change = settle(job, outcome, roll=roll)
        assert 0 <= change.delay <= MAX_DELAY
        assert change.delay == 0 or change.state == "ready"

    @given(jobs(), outcomes, rolls)
    def test_stays_in_its_run_unless_it_goes_on(self, job: Running, outcome: Outcome, roll: float) -> None:
        change = settle(job, outcome, roll=roll)
        went_on = isinstance(outcome, Continued) and change.state == "ready"
        assert change.run == min(job.run + went_on, MOST_COUNTED)

    @given(jobs(), outcomes, rolls)
    def test_has_an_error_exactly_where_the_attempt_failed(
        self, job: Running, outcome: Outcome, roll: float
    ) -> None:
        change = settle(job, outcome, roll=roll)
        error = (change.error_kind, change.error_code, change.error_message, change.error_trace)
        if isinstance(outcome, Failed):
            code = outcome.code or FAILURE_CODES[outcome.kind]
            assert error == (outcome.kind, code, outcome.message, outcome.trace)
        else:
            assert error == (None, None, None, None)

    @given(jobs(), outcomes, rolls)
    def test_goes_into_the_ledger_exactly_where_the_row_would_forget_it(
        self, job: Running, outcome: Outcome, roll: float
    ) -> None:
        change = settle(job, outcome, roll=roll)
        ran = not isinstance(outcome, Released)
        assert (change.attempt_kind is not None) == (change.state == "ready" and ran)
        assert (change.decided_by is not None) == (change.attempt_kind is not None)

    @given(jobs(), outcomes, rolls)
    def test_has_a_result_only_where_the_handler_returned(
        self, job: Running, outcome: Outcome, roll: float
    ) -> None:
        change = settle(job, outcome, roll=roll)
        assert (change.state == "succeeded") == isinstance(outcome, Succeeded)
        assert change.result == (outcome.result if isinstance(outcome, Succeeded) else None)


class TestCancel:
    @given(jobs(cancel_requested=True), successes, rolls)
    def test_a_returned_result_wins_over_it(self, job: Running, outcome: Outcome, roll: float) -> None:
        assert settle(job, outcome, roll=roll).state == "succeeded"

    @given(jobs(cancel_requested=True), unsuccessful, rolls)
    def test_it_ends_every_other_outcome(self, job: Running, outcome: Outcome, roll: float) -> None:
        change = settle(job, outcome, roll=roll)
        assert (change.state, change.run, change.delay) == ("canceled", job.run, 0)

    def test_a_handler_that_gives_up_says_why(self) -> None:
        change = settle(job(), Canceled(LEASE, "no such customer"), roll=0.5)
        assert (change.state, change.reason) == ("canceled", "no such customer")


class TestAttempts:
    @given(jobs(cancel_requested=False), endings_at_no_cost, rolls)
    def test_snooze_throttle_and_a_claim_given_back_cost_none(
        self, job: Running, outcome: Outcome, roll: float
    ) -> None:
        change = settle(job, outcome, roll=roll)
        assert (change.state, change.attempt, change.crashes) == ("ready", job.attempt - 1, job.crashes)

    @given(jobs(cancel_requested=False), failures("interrupted"), rolls)
    def test_an_interrupted_one_is_returned_and_ready_at_once(
        self, job: Running, outcome: Outcome, roll: float
    ) -> None:
        change = settle(job, outcome, roll=roll)
        assert (change.state, change.attempt, change.crashes) == ("ready", job.attempt - 1, job.crashes)
        assert (change.delay, change.decided_by) == (0, "interruption")

    @given(jobs(cancel_requested=False), failures("error", "fatal", "timeout", "lost", "panic"), rolls)
    def test_a_failure_costs_one(self, job: Running, outcome: Outcome, roll: float) -> None:
        assert settle(job, outcome, roll=roll).attempt == job.attempt

    @given(jobs(cancel_requested=False), failures("error", "timeout"), rolls)
    def test_there_is_another_until_all_are_used_up(
        self, job: Running, outcome: Outcome, roll: float
    ) -> None:
        change = settle(job, outcome, roll=roll)
        last = job.attempt >= job.max_attempts
        assert (change.state, change.reason) == (("failed", "attempts") if last else ("ready", None))

    @pytest.mark.parametrize(("attempt", "state"), [(2, "ready"), (3, "failed"), (4, "failed")])
    def test_the_last_is_the_one_that_reaches_the_limit(self, attempt: int, state: str) -> None:
        assert settle(job(attempt=attempt), Failed(LEASE, "error"), roll=0.5).state == state

    @given(jobs(cancel_requested=False), failures("fatal"), rolls)
    def test_after_a_fatal_one_there_is_none(self, job: Running, outcome: Outcome, roll: float) -> None:
        change = settle(job, outcome, roll=roll)
        assert (change.state, change.reason) == ("failed", "fatal")

    def test_a_run_that_goes_on_begins_anew(self) -> None:
        change = settle(job(run=4, attempt=3, crashes=2), Continued(LEASE, 5 * SECOND), roll=0.5)
        assert (change.state, change.run, change.attempt, change.crashes) == ("ready", 5, 0, 0)
        assert (change.delay, change.attempt_kind) == (5 * SECOND, "continued")

    def test_snoozes_and_throttles_are_counted_one_by_one(self) -> None:
        snoozed = settle(job(), Snoozed(LEASE, SECOND), roll=0.5)
        throttled = settle(job(throttles=4), Throttled(LEASE, SECOND), roll=0.5)
        assert (snoozed.snoozes, snoozed.throttles, snoozed.attempt_kind) == (1, 0, "snoozed")
        assert (throttled.snoozes, throttled.throttles, throttled.attempt_kind) == (0, 1, "throttled")


class TestWaiting:
    @given(jobs(cancel_requested=False), failures("error", "timeout", "panic"), rolls)
    def test_the_delay_a_handler_asks_for_is_a_lower_bound(
        self, job: Running, failure: Failed, roll: float
    ) -> None:
        change = settle(job, failure, roll=roll)
        if change.state == "ready":
            code = failure.code or FAILURE_CODES[failure.kind]
            by_policy = job.backoff.delay(job.attempt, code=code, roll=roll)
            assert change.delay == max(by_policy, min(failure.delay or 0, MAX_DELAY))

    @pytest.mark.parametrize(
        ("failure", "seconds", "decided_by"),
        [
            (Failed(LEASE, "error"), 4, "policy"),
            (Failed(LEASE, "error", "http.404"), 4, "policy"),
            (Failed(LEASE, "error", "http.503"), 60, "code"),
            (Failed(LEASE, "error", delay=3 * SECOND), 4, "policy"),
            (Failed(LEASE, "error", delay=5 * SECOND), 5, "handler"),
            (Failed(LEASE, "error", "http.503", delay=5 * SECOND), 60, "code"),
            (Failed(LEASE, "error", "http.503", delay=90 * SECOND), 90, "handler"),
        ],
    )
    def test_what_decided_it_is_told(self, failure: Failed, seconds: int, decided_by: str) -> None:
        change = settle(job(), failure, roll=0.5)
        assert (change.delay, change.decided_by) == (seconds * SECOND, decided_by)

    @pytest.mark.parametrize(
        ("kind", "crashes", "seconds", "decided_by"),
        [
            ("error", 0, 7, "code"),
            ("timeout", 0, 7, "code"),
            ("panic", 0, 7, "code"),
            ("lost", 0, 0, "first loss"),
            ("lost", 1, 7, "code"),
            ("interrupted", 0, 0, "interruption"),
        ],
    )
    def test_the_code_of_a_failure_whose_handler_named_none_counts_as_well(
        self, kind: FailureKind, crashes: int, seconds: int, decided_by: str
    ) -> None:
        policy = Backoff(codes=dict.fromkeys(FAILURE_CODES.values(), 7))
        change = settle(job(backoff=policy, crashes=crashes), Failed(LEASE, kind), roll=0.5)
        assert (change.delay, change.decided_by) == (seconds * SECOND, decided_by)

    def test_a_code_of_the_handler_counts_instead_of_the_default_one(self) -> None:
        policy = Backoff(base=8, codes={"job.error": 7})
        change = settle(job(backoff=policy), Failed(LEASE, "error", "http.503"), roll=0.5)
        assert (change.delay, change.decided_by) == (4 * SECOND, "policy")

    def test_it_grows_with_the_attempt(self) -> None:
        changes = [
            settle(job(attempt=attempt, max_attempts=9), Failed(LEASE, "timeout"), roll=0.5)
            for attempt in range(1, 7)
        ]
        assert [change.delay / SECOND for change in changes] == [4, 8, 16, 32, 50, 50]

    @pytest.mark.parametrize(("throttles", "seconds"), [(0, 4), (1, 8), (2, 16), (30, 50)])
    def test_a_throttled_job_without_a_delay_waits_by_how_often_it_was(
        self, throttles: int, seconds: int
    ) -> None:
        change = settle(job(throttles=throttles, attempt=3), Throttled(LEASE), roll=0.5)
        assert change.delay == seconds * SECOND

    @pytest.mark.parametrize("outcome", [Snoozed, Throttled, Continued, Released])
    def test_a_delay_that_was_asked_is_kept(self, outcome: type[Snoozed]) -> None:
        assert settle(job(), outcome(LEASE, 90 * SECOND), roll=0.5).delay == 90 * SECOND


def test_every_kind_of_failure_has_a_code_of_its_own() -> None:
    assert FAILURE_CODES == {
        "error": "job.error",
        "fatal": "job.fatal",
        "timeout": "job.timeout",
        "lost": "job.lost",
        "panic": "job.panic",
        "interrupted": "job.interrupted",
    }
    assert set(FAILURE_CODES) == set(KINDS)
