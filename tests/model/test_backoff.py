"""How long a job waits before its next try: within bounds, for every policy and every attempt."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perdure.errors import InvalidOption
from perdure.model.backoff import DEFAULT_BACKOFF, MAX_DELAY, Backoff, dump_backoff, load_backoff
from perdure.model.job import SECOND

YEAR = 366 * 86_400.0
SMALLEST = math.ulp(0.0)

seconds = st.floats(0, YEAR) | st.integers(0, int(YEAR))
codes = st.dictionaries(st.sampled_from(["http.429", "http.503", "db.deadlock"]), seconds)
policies = st.builds(Backoff, base=seconds, cap=seconds, codes=codes)
attempts = st.integers(1, 12) | st.integers(1, 2**31 - 1)
rolls = st.floats(0, 1, exclude_max=True)


@given(policies, attempts, rolls)
@example(DEFAULT_BACKOFF, 10_000, 0.999)
@example(Backoff(base=YEAR, cap=YEAR), 2**31 - 1, math.nextafter(1, 0))
@example(Backoff(base=SMALLEST, cap=YEAR), 10_000, 0.5)
@example(Backoff(base=SMALLEST, cap=SMALLEST), 10_000, 0.5)
@example(Backoff(base=YEAR, cap=SMALLEST), 1, 0.5)
def test_a_wait_lies_between_nothing_and_its_ceiling(policy: Backoff, n: int, roll: float) -> None:
    assert 0 <= policy.delay(n, roll=roll) <= policy.ceiling(n) <= MAX_DELAY


@given(policies, attempts)
@example(Backoff(base=SMALLEST, cap=YEAR), 10_000)
def test_the_ceiling_never_exceeds_the_cap_and_never_sinks(policy: Backoff, n: int) -> None:
    assert policy.ceiling(n) <= policy.ceiling(n + 1) <= round(policy.cap * SECOND)


@given(seconds, seconds, st.integers(1, 20))
def test_the_ceiling_doubles_until_it_meets_the_cap(base: float, cap: float, n: int) -> None:
    assert Backoff(base=base, cap=cap).ceiling(n) == round(min(base * 2 ** (n - 1), cap) * SECOND)


@given(policies.filter(lambda policy: policy.base > 0))
def test_the_ceiling_reaches_the_cap(policy: Backoff) -> None:
    assert policy.ceiling(10_000) == round(policy.cap * SECOND)


def test_the_defaults_double_from_five_seconds_to_a_quarter_of_an_hour() -> None:
    ceilings = [DEFAULT_BACKOFF.ceiling(n) / SECOND for n in range(1, 11)]
    assert ceilings == [5, 10, 20, 40, 80, 160, 320, 640, 900, 900]


@given(policies, attempts)
def test_the_jitter_is_full_it_starts_at_nothing(policy: Backoff, n: int) -> None:
    assert policy.delay(n, roll=0.0) == 0


@given(st.integers(1, 8), rolls)
def test_the_jitter_is_full_it_is_even(n: int, roll: float) -> None:
    assert DEFAULT_BACKOFF.delay(n, roll=roll) == int(DEFAULT_BACKOFF.ceiling(n) * roll)


@given(policies, attempts, rolls, st.sampled_from(["http.429", "http.503", "db.deadlock", "unheard.of"]))
def test_a_code_with_a_wait_of_its_own_waits_exactly_that(
    policy: Backoff, n: int, roll: float, code: str
) -> None:
    delay = policy.delay(n, code=code, roll=roll)
    if code in policy.codes:
        assert delay == round(policy.codes[code] * SECOND)
    else:
        assert delay == policy.delay(n, roll=roll)


def test_a_code_may_ask_for_no_wait_at_all() -> None:
    assert Backoff(codes={"http.409": 0}).delay(3, code="http.409", roll=0.9) == 0


@pytest.mark.parametrize("n", [0, -1])
def test_what_was_never_tried_waits_like_the_first_failure(n: int) -> None:
    assert DEFAULT_BACKOFF.ceiling(n) == DEFAULT_BACKOFF.ceiling(1)


@given(policies)
def test_a_policy_comes_back_from_the_database_as_it_went_in(policy: Backoff) -> None:
    assert load_backoff(dump_backoff(policy)) == policy


def test_no_policy_stored_is_the_default() -> None:
    assert load_backoff(None) == DEFAULT_BACKOFF


@pytest.mark.parametrize("wrong", [-1, -SMALLEST, math.nan, math.inf, 10**30, YEAR + 1, "five", None, True])
@pytest.mark.parametrize("field", ["base", "cap", "codes"])
def test_a_wait_that_is_no_wait_is_refused_and_named(field: str, wrong: object) -> None:
    asked: dict[str, Any] = {field: {"http.503": wrong} if field == "codes" else wrong}
    name = "http.503" if field == "codes" else field
    with pytest.raises(InvalidOption, match=f"^Back-off {name} must ") as refusal:
        Backoff(**asked)
    assert str(wrong) not in str(refusal.value)


def test_a_number_too_large_for_a_float_is_refused_as_well() -> None:
    with pytest.raises(InvalidOption, match=r"^Back-off base must "):
        Backoff(base=10**400)


@pytest.mark.parametrize("wrong", ["http.503", [("http.503", 1)], {503: 1}, None])
def test_codes_that_are_no_table_are_refused(wrong: object) -> None:
    with pytest.raises(InvalidOption, match=r"^Back-off codes must "):
        Backoff(codes=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ['{"base":-1}', '{"base":1e99}', '{"codes":{"a":"b"}}', "[]"])
def test_a_damaged_policy_is_not_read(text: str) -> None:
    with pytest.raises((msgspec.ValidationError, InvalidOption)):
        load_backoff(text)
