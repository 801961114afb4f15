"""Which jobs a worker takes, in which order, and how it learns of them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import pytest

from perdure import App
from tests.worker.fleet import Fleet
from tests.worker.waiting import until_state


@pytest.fixture
def order(app: App) -> list[str]:
    """The words of the jobs of ``say``, as they were run."""
    said: list[str] = []

    @app.task(name="say")
    async def say(word: str) -> None:
        said.append(word)

    return said


async def fill(app: App, **words: Any) -> list[Any]:
    """Jobs with options: ``queue_word={...}``."""
    requests = [app.tasks["say"].using(**options).job(word) for word, options in words.items()]
    return await app.aenqueue_many(requests)


async def run_all(app: App, jobs: list[Any], **options: Any) -> None:
    async with app.worker(concurrency=1, **options):
        for job in jobs:
            await job.ajoin(30)


async def test_a_list_is_a_strict_order(app: App, order: list[str]) -> None:
    jobs = await fill(
        app,
        b1={"queue": "b", "priority": 9},
        a1={"queue": "a"},
        b2={"queue": "b"},
        a2={"queue": "a", "priority": 5},
    )
    await run_all(app, jobs, queues=["a", "b"])
    assert order == ["a2", "a1", "b1", "b2"]


async def test_priority_holds_among_all_queues(app: App, order: list[str]) -> None:
    jobs = await fill(
        app,
        low={"queue": "a", "priority": -1},
        first={"queue": "a"},
        second={"queue": "b"},
        high={"queue": "b", "priority": 1},
    )
    await run_all(app, jobs)
    assert order == ["high", "first", "second", "low"]


async def test_weights_are_odds(app: App, order: list[str]) -> None:
    jobs = []
    for queue in ("a", "b"):
        task = app.tasks["say"].using(queue=queue)
        jobs += await app.aenqueue_many([task.job(queue) for _ in range(120)])
    await run_all(app, jobs, queues={"a": 3, "b": 1})
    # Of the first hundred, 75 in the mean; a standard deviation is 4.3.
    assert 55 <= Counter(order[:100])["a"] <= 95


async def test_other_queues_are_left_alone(app: App, order: list[str]) -> None:
    other, mine = await fill(app, other={"queue": "b"}, mine={"queue": "a"})
    await run_all(app, [mine], queues=["a"])
    assert order == ["mine"]
    assert (await other.arefresh()).state == "ready"


async def test_only_known_tasks_are_taken(url: str, app: App, order: list[str]) -> None:
    stranger = App(url)
    stranger.task(name="strange")(lambda: None)
    unknown = await stranger.aenqueue_many([stranger.tasks["strange"].job() for _ in range(50)])
    await stranger.aclose()
    await run_all(app, await fill(app, known={}))
    assert order == ["known"]
    assert (await app.aget_job(unknown[0].id)).state == "ready"


async def test_an_alias_is_known_too(url: str, app: App) -> None:
    before = App(url)
    before.task(name="old_name")(lambda: "old")
    job = await before.tasks["old_name"].aenqueue()
    await before.aclose()

    @app.task(name="new_name", aliases=["old_name"])
    async def renamed() -> str:
        return "new"

    async with app.worker():
        assert await (await app.aget_job(job.id)).aget(30) == "new"


async def test_pausing_a_queue_interrupts_nothing_and_starts_nothing(app: App) -> None:
    go_on = asyncio.Event()

    @app.task(name="rest")
    async def rest() -> str:
        await go_on.wait()
        return "rested"

    async with app.worker():
        running = await rest.aenqueue()
        await until_state(running, "running")
        await app.apause_queue("default")
        waiting = await rest.aenqueue()
        other = await rest.using(queue="other").aenqueue()
        await until_state(other, "running")
        go_on.set()
        assert await running.aget(30) == "rested"
        assert (await waiting.arefresh()).state == "ready"
        await app.aresume_queue("default")
        assert await waiting.aget(30) == "rested"


def test_a_job_from_another_process_waits_for_no_poll(fleet: Fleet) -> None:
    fleet.start(lease=3600, poll=3600)
    fleet.enqueue("add", a=0, b=0).get(30)
    assert fleet.enqueue("add", a=1, b=2).get(30) == 3


async def test_polling_alone_suffices(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app.store, "listen", lambda listener: lambda: None, raising=False)

    @app.task(name="add")
    async def add(a: int, b: int) -> int:
        return a + b

    async with app.worker(poll=0.1):
        for n in range(3):
            job = await add.aenqueue(n, n)
            await until_state(job, "succeeded")


async def test_a_job_is_run_when_its_time_comes_and_not_before(app: App) -> None:
    seen: list[float] = []

    @app.task(name="later")
    async def later() -> None:
        seen.append(time.time())

    asked = time.time()
    async with app.worker(poll=0.1):
        await (await later.using(delay=0.5).aenqueue()).aget(30)
    assert seen[0] - asked >= 0.49


async def test_a_job_past_its_expiry_is_canceled_not_run(app: App, order: list[str]) -> None:
    jobs = await fill(app, late={"expires": 0.05}, fine={})
    await asyncio.sleep(0.1)  # the time it had
    await run_all(app, jobs)
    assert order == ["fine"]
    assert ((await jobs[0].arefresh()).state, jobs[0].reason) == ("canceled", "expired")
