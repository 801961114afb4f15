"""Percentiles of a sample, by nearest rank."""

from __future__ import annotations

from statistics import median_low
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from perdure.model.job import SECOND
from perdure.model.latency import Ended, Latency, Spread, latency, spread

NOW = 1_800_000_000 * SECOND


def ended(state: Any = "succeeded", *, waited: float = 0, ran: float | None = 0) -> Ended:
    started = None if ran is None else NOW + round(waited * SECOND)
    return Ended("j", "mail", "send", state, NOW, started, (started or NOW) + round((ran or 0) * SECOND))


def test_no_job_has_no_spread() -> None:
    assert spread([]) is None
    assert latency([], SECOND) == Latency(0, 0, 0, 0.0, None, None)


def test_each_rank_is_the_time_of_some_job() -> None:
    assert spread([n * SECOND for n in range(1, 101)]) == (50, 95, 99, 100)
    assert spread([n * SECOND for n in (3, 1, 2)]) == (2, 3, 3, 3)
    assert spread([7 * SECOND]) == (7, 7, 7, 7)
    assert spread([-SECOND, SECOND]) == (0, 1, 1, 1), "a clock that was set back"


@given(st.lists(st.integers(0, 10**12), min_size=1))
def test_the_ranks_grow_and_stand_where_they_should(times: list[int]) -> None:
    told = spread(times)
    assert told is not None
    assert list(told) == sorted(told)
    assert told.p50 == median_low(times) / SECOND
    assert sum(time / SECOND <= told.p95 for time in times) >= 0.95 * len(times)
    assert told.max == max(times) / SECOND


def test_what_never_began_counts_and_has_no_times() -> None:
    jobs = [ended(waited=2, ran=5), ended("failed", waited=4, ran=1), ended("canceled", ran=None)]
    told = latency(jobs, 6 * SECOND)
    assert told[:4] == (1, 1, 1, 0.5)
    assert (told.waited, told.ran) == (Spread(2, 4, 4, 4), Spread(1, 5, 5, 5))
