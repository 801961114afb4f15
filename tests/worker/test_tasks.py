"""The tasks in which async handlers run, when others meddle with them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from perdure import App
from tests.harness.waiting import auntil


@pytest.fixture
async def app(url: str) -> AsyncIterator[App]:
    app = App(url)
    await app.amigrate()
    yield app
    await asyncio.to_thread(app.close)


async def test_one_that_somebody_else_cancels_before_it_begins_ends_its_attempt(app: App) -> None:
    @app.task(name="victim", max_attempts=1)
    async def victim() -> None: ...

    cancelled: set[asyncio.Task[object]] = set()
    create_task = asyncio.get_running_loop().create_task

    def meddle(coroutine: object, **options: object) -> asyncio.Task[object]:
        task: asyncio.Task[object] = create_task(coroutine, **options)  # type: ignore[arg-type]
        if options.get("name") == "victim":
            cancelled.add(task)
            task.cancel()
        return task

    asyncio.get_running_loop().create_task = meddle  # type: ignore[method-assign, assignment]
    jobs = [await victim.aenqueue() for _ in range(5)]
    async with app.worker(concurrency=2):
        for job in jobs:
            await job.ajoin(30)
    assert len(cancelled) == 5
    assert [(await job.arefresh()).state for job in jobs] == ["failed"] * 5


async def test_one_that_begins_at_once_leaves_nothing_behind(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with asyncio.eager_task_factory."""
    ran: list[int] = []

    @app.task(name="eager")
    async def eager(n: int) -> None:
        ran.append(n)

    create_task = asyncio.get_running_loop().create_task

    def at_once(coroutine: object, **options: object) -> object:
        if options.get("name") != "eager":
            return create_task(coroutine, **options)  # type: ignore[arg-type]
        with pytest.raises(StopIteration):
            coroutine.send(None)  # type: ignore[attr-defined]
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    monkeypatch.setattr(asyncio.get_running_loop(), "create_task", at_once)
    for n in range(5):
        await eager.aenqueue(n)
    async with app.worker(concurrency=2) as worker:
        await auntil(lambda: len(ran) == 5 and worker.free == 2)
        assert not worker._slots._on_loop._tasks
