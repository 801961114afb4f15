"""A worker looks for garbage by time, unless somebody has chosen otherwise, and leaves the collector as it was."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator

import pytest

from perdure import App
from perdure.worker.gc_tuning import MOST, USUAL
from tests.harness.waiting import auntil


@pytest.fixture(autouse=True)
def _threshold() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def seen_by_a_handler(app: App) -> int:
    @app.task(name="look")
    async def look() -> int:
        return gc.get_threshold()[0]

    job = look.enqueue()
    assert app.run_worker(burst=True) == 0
    return job.get(0)


@pytest.mark.parametrize(
    ("asked", "found"), [*((usual, MOST) for usual in USUAL), (0, 0), (1000, 1000), (50_000, 50_000)]
)
def test_only_the_usual_threshold_is_raised_and_only_as_long_as_the_worker_runs(
    app: App, asked: int, found: int
) -> None:
    gc.set_threshold(asked, 5, 5)
    assert seen_by_a_handler(app) == found
    assert gc.get_threshold() == (asked, 5, 5)
    assert gc.get_freeze_count() == 0


def test_a_worker_in_a_thread_leaves_it_alone(app: App) -> None:
    gc.set_threshold(USUAL[0], 5, 5)
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(seen_by_a_handler(app)))
    thread.start()
    thread.join()
    assert found == [USUAL[0]]


def test_what_is_large_is_not_kept_until_there_is_much_of_it(app: App) -> None:
    gc.set_threshold(USUAL[0], 5, 5)

    class Large:
        def __init__(self) -> None:
            self.itself = self

    @app.task(name="leave")
    async def leave() -> None:
        dropped = weakref.ref(Large())
        await auntil(lambda: dropped() is None)

    job = leave.enqueue()
    assert app.run_worker(burst=True) == 0
    assert job.refresh().state == "succeeded"
