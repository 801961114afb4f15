"""Many rows in portions: bounded in number and in size, and none is lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perdure.ops.batch import CHARACTERS, CHUNK, chunks, portions

HALF = CHARACTERS // 2


def cut(*sizes: int) -> list[list[int]]:
    """The sizes as they are cut into portions."""
    return [list(some) for some in portions(sizes, sizes)]


def test_rows_go_by_the_thousand() -> None:
    assert [len(some) for some in chunks(range(2500))] == [1000, 1000, 500]
    assert [len(some) for some in portions(range(2500), [1] * 2500)] == [1000, 1000, 500]
    assert list(chunks([])) == list(portions([], [])) == []


def test_a_portion_is_as_large_as_it_may_be() -> None:
    assert cut(HALF, HALF) == [[HALF, HALF]]
    assert cut(HALF, HALF + 1) == [[HALF], [HALF + 1]]
    assert cut(HALF, HALF, 1) == [[HALF, HALF], [1]]


def test_what_is_too_large_goes_alone() -> None:
    large = CHARACTERS + 1
    assert cut(large) == [[large]]
    assert cut(1, large, 1) == [[1], [large], [1]]
    assert cut(large, large) == [[large], [large]]


@given(st.lists(st.integers(0, CHARACTERS * 2), max_size=50))
def test_no_row_is_lost_and_no_portion_is_too_large(sizes: list[int]) -> None:
    parts = cut(*sizes)
    assert [size for part in parts for size in part] == sizes
    assert all(0 < len(part) <= CHUNK for part in parts)
    assert all(sum(part) <= CHARACTERS for part in parts if len(part) > 1)
