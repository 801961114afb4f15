"""Times as people read them."""

from __future__ import annotations

import pytest

from perdure.model.time_text import distance, length, stamp

NOON = 1_800_000_000_000_000


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0, "0 s"),
        (0.0004, "0 ms"),
        (0.25, "250 ms"),
        (1, "1 s"),
        (119, "119 s"),
        (120, "2 min"),
        (7199, "119 min"),
        (7200, "2 h"),
        (172_799, "47 h"),
        (172_800, "2 d"),
        (8_640_000, "100 d"),
    ],
)
def test_a_length_is_told_in_the_largest_unit_of_which_there_are_two(seconds: float, told: str) -> None:
    assert length(seconds) == told


def test_a_distance_has_a_direction() -> None:
    assert distance(NOON + 7_200_000_000, NOON) == "in 2 h"
    assert distance(NOON - 3_000_000, NOON) == "3 s ago"
    assert distance(NOON, NOON) == "0 s ago"


def test_a_stamp_is_in_utc() -> None:
    assert stamp(NOON + 999_999) == "2027-01-15 08:00:00 UTC"
