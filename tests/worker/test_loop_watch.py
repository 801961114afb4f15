"""When the watch gives an event loop up. The test's own task holds the loop between the looks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from perdure.worker.loop_watch import LoopWatch, Verdict


class Late:
    """An attempt past its timeout and grace."""

    ended = False

    def __init__(self, grace: float) -> None:
        self.timeout_grace = grace
        self.id = self.task = "late"
        self.handler = self.job = self

    def overdue(self, now: float) -> bool:
        return not self.ended


class Held:
    """A worker whose loop is held by the task of its one attempt."""

    drained_by: float | None = None

    def __init__(self, *, grace: float) -> None:
        self.attempt: Any = Late(grace)
        self.verdicts: list[Verdict] = []

    @property
    def attempts(self) -> Sequence[Any]:
        return [self.attempt]

    def attempt_of(self, task: asyncio.Task[Any] | None) -> Any:
        return self.attempt

    def give_up_loop(self, verdict: Verdict, stack: str) -> None:
        self.verdicts.append(verdict)


def looks(worker: Held, *passed: float) -> list[int]:
    """How often the loop had been given up after each of these looks, so many seconds after the last one."""
    watch, given_up = LoopWatch(worker, interval=10), []
    watch.look(1.0, 0.0)  # asks for the first answer
    for seconds in passed:
        watch.look(seconds, 0.0)
        given_up.append(len(worker.verdicts))
    return given_up


async def test_a_handler_that_holds_the_loop_for_its_grace_is_given_up() -> None:
    worker = Held(grace=3)
    assert looks(worker, 1.0, 1.0, 1.0) == [0, 0, 1]
    assert worker.verdicts[0].blocker is worker.attempt


@pytest.mark.parametrize("late", [2.0, 23.0])
async def test_a_late_look_counts_nothing_and_starts_anew(late: float) -> None:
    """The process was stopped, or the machine suspended."""
    assert looks(Held(grace=2), late, 1.0, 1.0) == [0, 0, 1]
    assert looks(Held(grace=2), 1.0, late, 1.0, 1.0) == [0, 0, 0, 1]


async def test_a_late_look_does_not_end_a_worker_that_drains() -> None:
    worker = Held(grace=30)
    worker.drained_by = -1.0
    assert looks(worker, 23.0, 1.0) == [0, 1]


async def test_a_loop_that_answers_between_two_looks_is_not_given_up() -> None:
    worker = Held(grace=2)
    watch = LoopWatch(worker, interval=10)
    for _ in range(3):
        for _ in range(2):
            watch.look(1.0, 0.0)
        await asyncio.sleep(0)
    assert worker.verdicts == []


async def test_one_that_was_given_up_before_is_given_up_with_its_worker_and_not_charged() -> None:
    worker = Held(grace=3)
    worker.attempt.ended = True
    assert looks(worker, *[1.0] * 5) == [0, 0, 0, 0, 1]
    assert worker.verdicts[0].charge("") is None


@pytest.mark.parametrize("grace", [0, 0.5])
async def test_without_a_grace_it_must_have_held_the_loop_for_two_ticks(grace: float) -> None:
    assert looks(Held(grace=grace), 1.0, 1.0) == [0, 1]


class LeftBehind(Held):
    """A worker whose loop is held by code that belongs to no attempt."""

    def __init__(self, *running: str) -> None:
        super().__init__(grace=3)
        self._running = [InTime(run_in) for run_in in running]

    @property
    def attempts(self) -> Sequence[Any]:
        return self._running

    def attempt_of(self, task: asyncio.Task[Any] | None) -> Any:
        return None


class InTime(Late):
    """An attempt that has time left."""

    def __init__(self, run_in: str) -> None:
        super().__init__(grace=3)
        self.run_in = run_in

    def overdue(self, now: float) -> bool:
        return False


@pytest.mark.parametrize("running", [(), ("thread", "process")], ids=["nothing", "elsewhere"])
async def test_code_that_a_handler_left_behind_may_hold_the_loop_for_a_lease(
    running: tuple[str, ...],
) -> None:
    worker = LeftBehind(*running)
    assert looks(worker, *[1.0] * 30)[-2:] == [0, 1]
    assert worker.verdicts[0].charge("") is None


async def test_while_a_handler_on_the_loop_has_time_nobody_else_is_suspected() -> None:
    assert looks(LeftBehind("async"), *[1.0] * 40)[-1] == 0
