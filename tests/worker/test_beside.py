"""A worker beside a program: the program can see whether it runs, and learns that it died."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from perdure import App
from perdure.errors import WorkerDied
from perdure.model.job import Lease
from perdure.worker.options import Exit


@pytest.fixture
def fatal_app(app: App, monkeypatch: pytest.MonkeyPatch) -> App:
    """With a bug that ends one of its worker's loops."""

    async def cycle(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError

    app.task(name="work")(lambda: None)
    monkeypatch.setattr(app.operations, "acycle", cycle, raising=False)
    return app


async def test_one_that_died_is_seen_at_once_and_told_when_the_block_ends(fatal_app: App) -> None:
    async def live() -> None:
        async with fatal_app.worker() as worker:
            assert worker.status is None
            assert await asyncio.wait_for(worker.wait(), 60) == Exit.CRASHED
            assert worker.status == Exit.CRASHED

    with pytest.raises(WorkerDied) as caught:
        await live()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


async def test_a_bug_in_what_a_worker_does_aside_ends_it_too(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def finish(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError

    app.task(name="work")(lambda: None)

    async def live() -> None:
        async with app.worker() as worker:
            monkeypatch.setattr(app.operations, "afinish", finish, raising=False)
            worker._executor.releaser.give_back([Lease("01a1e25c-0424-7380-b821-639a370869b8", 1)])
            assert await asyncio.wait_for(worker.wait(), 60) == Exit.CRASHED

    with pytest.raises(WorkerDied) as caught:
        await live()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


async def test_an_error_of_the_block_itself_goes_first(fatal_app: App) -> None:
    async def live() -> None:
        async with fatal_app.worker() as worker:
            await asyncio.wait_for(worker.wait(), 60)
            raise KeyError

    with pytest.raises(KeyError):
        await live()


async def test_handlers_that_take_every_thread_are_told_too(app: App) -> None:
    release = threading.Event()

    @app.task(name="hang", timeout=0.1, timeout_grace=0.1, max_attempts=1)
    def hang() -> None:
        release.wait(30)

    async def live() -> None:
        async with app.worker(concurrency=1) as worker:
            await hang.aenqueue()
            assert await asyncio.wait_for(worker.wait(), 60) == Exit.SLOTS_LOST

    with pytest.raises(WorkerDied):
        await live()
    release.set()


async def test_one_that_was_stopped_in_order_is_no_error(app: App) -> None:
    app.task(name="work")(lambda: None)
    async with app.worker() as worker:
        worker.stop()
        assert await asyncio.wait_for(worker.wait(), 60) == Exit.DONE
    async with app.worker() as worker:
        pass
    assert worker.status == Exit.DONE
