"""A clock that was set, or a machine that slept, is noticed; time that passes is not."""

from __future__ import annotations

import pytest

from perdure.worker.clock_watch import ClockWatch

SECOND = 1_000_000_000


class Clocks:
    def __init__(self) -> None:
        self.wall = 1_800_000_000 * SECOND
        self.steady = 500 * SECOND
        self.watch = ClockWatch(lambda: self.wall, lambda: self.steady)

    def pass_time(self, seconds: int) -> None:
        self.wall += seconds * SECOND
        self.steady += seconds * SECOND


def test_time_that_passes_is_no_jump() -> None:
    clocks = Clocks()
    for seconds in (1, 3600, 86_400):
        clocks.pass_time(seconds)
        assert clocks.watch.steady_since() is None


@pytest.mark.parametrize("jump", [2, 3600, -2, -3600])
def test_a_jump_is_remembered_at_the_time_it_was_seen(jump: int) -> None:
    clocks = Clocks()
    clocks.pass_time(10)
    clocks.wall += jump * SECOND
    seen = clocks.wall // 1000
    assert clocks.watch.steady_since() == seen
    clocks.pass_time(60)
    assert clocks.watch.steady_since() == seen
    clocks.wall += jump * SECOND
    assert clocks.watch.steady_since() == clocks.wall // 1000
