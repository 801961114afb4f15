"""Rules beyond a single attempt: crashes that add up, queues that cool down, consistent progress."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.model.backoff import DEFAULT_BACKOFF, MAX_DELAY, Backoff
from perdure.model.cool_down import QUIET, cool_down
from perdure.model.job import SECOND
from perdure.model.lifecycle import (
    Continued,
    Failed,
    FailureKind,
    Outcome,
    Report,
    Running,
    settle,
)
from perdure.model.progress import merge_progress
from tests.model.lives import LEASE, failures, job, jobs, outcomes, policies, rolls

CRASHES: list[FailureKind] = ["lost", "panic"]

amounts = st.none() | st.integers(-2, 4)
truths = st.one_of(
    st.tuples(st.none() | st.integers(0, 4), st.none()),
    st.integers(0, 4).flatmap(lambda total: st.tuples(st.none() | st.integers(0, total), st.just(total))),
)


class TestCrashes:
    @given(jobs(cancel_requested=False), outcomes, rolls)
    def test_only_loss_and_panic_count(self, job: Running, outcome: Outcome, roll: float) -> None:
        change = settle(job, outcome, roll=roll)
        crashed = isinstance(outcome, Failed) and outcome.kind in CRASHES
        if not isinstance(outcome, Continued):
            assert change.crashes == job.crashes + crashed

    @pytest.mark.parametrize("kind", CRASHES)
    @pytest.mark.parametrize(
        ("limit", "crash", "state"),
        [
            (3, 4, "ready"),
            (3, 5, "failed"),
            (3, 6, "failed"),
            (1, 2, "ready"),
            (1, 3, "failed"),
            (None, 99, "ready"),
        ],
    )
    def test_those_from_the_third_on_count_towards_the_limit(
        self, kind: FailureKind, limit: int | None, crash: int, state: str
    ) -> None:
        crashing = job(max_attempts=1000, max_crashes=limit, crashes=crash - 1)
        change = settle(crashing, Failed(LEASE, kind), roll=0.5)
        assert (change.state, change.reason) == (state, "crashes" if state == "failed" else None)

    @pytest.mark.parametrize("kind", ["error", "timeout"])
    def test_a_plain_failure_is_never_blamed_on_earlier_crashes(self, kind: FailureKind) -> None:
        change = settle(job(crashes=9, max_crashes=1), Failed(LEASE, kind), roll=0.5)
        assert (change.state, change.crashes) == ("ready", 9)

    @given(jobs(cancel_requested=False), failures(*CRASHES), rolls)
    def test_a_crash_costs_its_attempt(self, job: Running, outcome: Outcome, roll: float) -> None:
        change = settle(job, outcome, roll=roll)
        if job.attempt >= job.max_attempts:
            assert change.state == "failed"

    @pytest.mark.parametrize(
        ("kind", "crashes", "seconds", "decided_by"),
        [("lost", 0, 0, "first loss"), ("lost", 1, 4, "policy"), ("panic", 0, 4, "policy")],
    )
    def test_the_first_loss_is_ready_at_once_and_later_ones_wait_like_errors(
        self, kind: FailureKind, crashes: int, seconds: int, decided_by: str
    ) -> None:
        change = settle(job(crashes=crashes), Failed(LEASE, kind), roll=0.5)
        assert (change.delay, change.decided_by) == (seconds * SECOND, decided_by)


class TestCoolDown:
    def cool(self, throttles: int = 0, left: int | None = -1, *asked: int | None) -> tuple[int, int]:
        return cool_down(throttles, left=left, asked=asked, backoff=Backoff(base=2, cap=60))

    def test_the_exponent_grows_by_one_with_each_event_of_the_limiter(self) -> None:
        throttles, seen = 0, []
        for _ in range(7):
            throttles, length = self.cool(throttles, -1, None, None)
            seen.append((throttles, length / SECOND))
        assert seen == [(1, 2), (2, 4), (3, 8), (4, 16), (5, 32), (6, 60), (7, 60)]

    @given(st.integers(0, 40), st.integers(1, MAX_DELAY), policies)
    def test_siblings_that_hit_the_same_limit_change_nothing(
        self, throttles: int, left: int, policy: Backoff
    ) -> None:
        assert cool_down(throttles, left=left, asked=[None], backoff=policy) == (throttles, left)

    @given(st.integers(0, 2**31 - 1), st.sampled_from([None, -QUIET, -QUIET - 1]))
    def test_after_a_quiet_time_it_begins_anew(self, throttles: int, left: int | None) -> None:
        assert self.cool(throttles, left, None) == (1, 2 * SECOND)
        assert self.cool(throttles, left, 7) == (0, 7)

    def test_a_quiet_time_is_two_minutes(self) -> None:
        assert QUIET == 120 * SECOND
        assert self.cool(2, 1 - QUIET, None) == (3, 8 * SECOND)

    @given(
        st.integers(0, 40), st.integers(1 - QUIET, MAX_DELAY), st.lists(st.integers(0, MAX_DELAY), min_size=1)
    )
    def test_a_delay_is_taken_as_it_is_and_leaves_the_exponent(
        self, throttles: int, left: int, asked: list[int]
    ) -> None:
        assert self.cool(throttles, left, *asked) == (throttles, max(left, 0, *asked))

    def test_of_a_delay_and_the_exponent_the_longer_one_counts(self) -> None:
        assert self.cool(2, -1, 7 * SECOND, None) == (3, 8 * SECOND)
        assert self.cool(2, -1, 9 * SECOND, None) == (3, 9 * SECOND)

    @given(
        st.integers(0, 2**31 - 1),
        policies,
        st.lists(st.none() | st.integers(0, 10**20), min_size=1),
        st.integers(),
    )
    def test_it_stays_within_bounds(
        self, throttles: int, policy: Backoff, asked: list[int | None], left: int
    ) -> None:
        exponent, length = cool_down(throttles, left=left, asked=asked, backoff=policy)
        assert exponent in (0, throttles) or 1 <= exponent <= 30
        assert 0 <= length <= max(MAX_DELAY, left)

    def test_a_queue_without_a_policy_of_its_own_takes_the_default(self) -> None:
        assert cool_down(0, left=None, asked=[None], backoff=None) == (1, DEFAULT_BACKOFF.ceiling(1))

    def test_the_exponent_cools_for_a_quarter_of_an_hour_at_most(self) -> None:
        policy = Backoff(base=3600, cap=7200)
        assert cool_down(0, left=None, asked=[None], backoff=policy) == (1, 900 * SECOND)


class TestProgress:
    @given(truths, amounts, amounts)
    def test_what_is_omitted_keeps_its_stored_value_and_only_a_true_pair_is_taken(
        self, stored: tuple[int | None, int | None], done: int | None, total: int | None
    ) -> None:
        merged = merge_progress(
            job(progress_done=stored[0], progress_total=stored[1]), Report(done=done, total=total)
        )
        now = (stored[0] if done is None else done, stored[1] if total is None else total)
        fits = all(part is None or part >= 0 for part in now)
        ordered = now[0] is None or now[1] is None or now[0] <= now[1]
        assert merged == (now if fits and ordered else None)

    @pytest.mark.parametrize(
        ("done", "total", "merged"),
        [
            (None, None, (3, 5)),
            (5, None, (5, 5)),
            (6, None, None),
            (None, 3, (3, 3)),
            (None, 2, None),
            (7, 9, (7, 9)),
            (0, 0, (0, 0)),
            (-1, None, None),
            (0, -1, None),
        ],
    )
    def test_three_of_five_reports_further(
        self, done: int | None, total: int | None, merged: tuple[int, int] | None
    ) -> None:
        assert (
            merge_progress(job(progress_done=3, progress_total=5), Report(done=done, total=total)) == merged
        )
