"""Seconds, timedeltas and datetimes become microseconds, or are refused by the name of their option."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import InvalidOption
from perdure.request.times import LONGEST, duration_us, from_us, to_us

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
END = datetime(2200, 1, 1, tzinfo=UTC)
CENTURY = 36_525 * 86_400
MICROSECOND = timedelta(microseconds=1)

zones = st.sampled_from([UTC, timezone(timedelta(hours=-11, minutes=-30)), ZoneInfo("Europe/Berlin")])
moments = st.datetimes(datetime(1970, 1, 3), datetime(2199, 12, 29), timezones=zones)


@pytest.mark.parametrize(
    ("seconds", "micros"),
    [
        (0, 0),
        (1, 1_000_000),
        (0.1, 100_000),
        (1e-6, 1),
        (4e-7, 0),
        (timedelta(hours=1, microseconds=1), 3_600_000_001),
        (CENTURY, LONGEST),
        (timedelta(seconds=CENTURY), LONGEST),
    ],
)
def test_a_duration_is_counted_in_microseconds(seconds: float | timedelta, micros: int) -> None:
    assert duration_us("delay", seconds) == micros


@given(st.timedeltas(timedelta(0), timedelta(seconds=CENTURY)))
def test_a_timedelta_is_taken_exactly(duration: timedelta) -> None:
    assert duration_us("delay", duration) * MICROSECOND == duration


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf, "5", None, True, 1j, [5]])
def test_what_is_no_duration_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidOption, match=r"^delay must be "):
        duration_us("delay", wrong)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_number_too_large_for_a_float_is_refused_like_any_other(sign: int) -> None:
    with pytest.raises(InvalidOption, match=r"^delay must be at least 0 and at most a hundred years\.$"):
        duration_us("delay", sign * 10**400)


@pytest.mark.parametrize(
    "wrong", [-1e-6, -1, -(10**30), CENTURY + 1e-6, CENTURY + 1, 1e300, -MICROSECOND, timedelta.max]
)
def test_a_duration_lies_between_nothing_and_a_century(wrong: float | timedelta) -> None:
    with pytest.raises(InvalidOption, match=r"^delay must be at least 0 and at most a hundred years\.$"):
        duration_us("delay", wrong)


@pytest.mark.parametrize("wrong", [0, -1, 4e-7, timedelta(0)])
def test_where_nothing_is_too_little_it_is_refused(wrong: float | timedelta) -> None:
    assert duration_us("timeout", 1e-6, least=1) == 1
    with pytest.raises(InvalidOption, match=r"^timeout must be more than 0 and at most a hundred years\.$"):
        duration_us("timeout", wrong, least=1)


@given(moments)
def test_a_moment_there_and_back_is_the_same_moment_in_utc(at: datetime) -> None:
    back = from_us(to_us("run_at", at))
    assert back == at.astimezone(UTC)
    assert back.tzinfo is UTC


def test_the_hour_a_clock_repeats_is_two_hours() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    first, second = (datetime(2025, 10, 26, 2, 30, tzinfo=berlin, fold=fold) for fold in (0, 1))
    assert to_us("run_at", second) - to_us("run_at", first) == 3600 * 1_000_000


@pytest.mark.parametrize("at", [EPOCH, END - MICROSECOND])
def test_the_first_and_the_last_moment_are_taken(at: datetime) -> None:
    assert from_us(to_us("run_at", at)) == at


@pytest.mark.parametrize(
    "at", [EPOCH - MICROSECOND, END, datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)]
)
def test_moments_before_and_after_are_refused(at: datetime) -> None:
    with pytest.raises(InvalidOption, match=r"^run_at must lie between the years 1970 and 2200\.$"):
        to_us("run_at", at)


@pytest.mark.parametrize(
    "wrong", [datetime(2025, 1, 1), 1_755_000_000, "2025-01-01T00:00:00Z", None, END.date()]
)
def test_what_is_no_moment_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidOption, match=r"^run_at must be a datetime with a time zone\.$"):
        to_us("run_at", wrong)
