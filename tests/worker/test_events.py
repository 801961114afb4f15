"""Those who subscribed are told what happened: after the commit, apart from each other, not for ever."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from perdure import App, Retry, Snooze
from perdure.errors import InvalidOption
from perdure.request.events import JobEvent
from perdure.worker import subscribers
from tests.harness.waiting import auntil
from tests.worker.waiting import until_state

FAR = 3600


async def test_each_ending_has_its_event_and_it_is_the_truth_by_then(app: App) -> None:
    told: list[tuple[str, str | None]] = []

    def last_is(name: str) -> bool:
        return bool(told) and told[-1][0] == name

    async def listen(event: JobEvent) -> None:
        told.append((event.name, (await app.aget_job(event.job_id)).state))

    app.on("started", "succeeded", "retried", "snoozed", "failed", "canceled")(listen)

    @app.task(name="end", backoff=FAR, max_attempts=2)
    async def end(how: str) -> None:
        await asyncio.sleep(0.05)
        match how:
            case "retried":
                raise Retry
            case "snoozed":
                raise Snooze(FAR)
            case "failed":
                raise ZeroDivisionError

    async with app.worker(concurrency=1):
        for how, state in (
            ("succeeded", "succeeded"),
            ("retried", "ready"),
            ("snoozed", "ready"),
            ("failed", "failed"),
        ):
            options = {"max_attempts": 1} if how == "failed" else {}
            await end.using(**options).aenqueue(how)  # type: ignore[arg-type]
            await auntil(partial(last_is, how))
            assert told[-1] == (how, state)
    assert [name for name, _ in told].count("started") == 4


async def test_an_event_says_whose_and_how_long(app: App) -> None:
    told: list[JobEvent] = []
    app.on("failed")(told.append)

    @app.task(name="fail", queue="q", max_attempts=1)
    async def fail() -> None:
        await asyncio.sleep(0.05)
        raise KeyError("x")

    async with app.worker() as worker:
        job = await fail.using(tenant="acme").aenqueue()
        await auntil(lambda: told)
    (event,) = told
    assert (event.job_id, event.task, event.queue, event.tenant) == (job.id, "fail", "q", "acme")
    assert (event.run, event.attempt, event.worker) == (1, 1, worker.identity)
    assert (event.kind, event.code, event.message) == ("error", "job.error", "KeyError: 'x'")
    assert event.seconds is not None
    assert event.seconds > 0.04


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, StopIteration])
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_listener_that_fails_disturbs_nobody(
    app: App, error: type[BaseException], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str] = []

    async def fail_on_loop(event: JobEvent) -> None:
        raise error

    def fail_in_thread(event: JobEvent) -> None:
        raise error

    app.on("succeeded")(fail_on_loop if kind == "async" else fail_in_thread)
    app.on("succeeded")(lambda event: heard.append(event.job_id))

    @app.task(name="work")
    async def work() -> None: ...

    async with app.worker():
        jobs = await app.aenqueue_many([work.job() for _ in range(6)])
        await auntil(lambda: len(heard) == 6)
        assert sorted(heard) == sorted(job.id for job in jobs)
        await auntil(lambda: caplog.text.count("A listener to 'succeeded' failed for job") == 6)


async def test_a_slow_listener_holds_up_no_job_and_is_not_waited_for(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(subscribers, "LIMIT", 0.2)
    release = threading.Event()

    @app.on("started")
    async def rest(event: JobEvent) -> None:
        await asyncio.sleep(60)

    @app.on("started")
    def rest_in_thread(event: JobEvent) -> None:
        release.wait(30)

    @app.task(name="work")
    async def work() -> str:
        return "done"

    async with app.worker():
        for _ in range(3):
            assert await (await work.aenqueue()).aget(30) == "done"
        await auntil(lambda: caplog.text.count("it is no longer waited for") == 3)
        await auntil(lambda: "rest_in_thread lags: a call of it takes more than 0.2 s" in caplog.text)
        release.set()
        await auntil(lambda: "rest_in_thread keeps up again; it missed 0 events" in caplog.text)
    assert caplog.text.count("lags") == 1


async def test_listeners_that_hang_silence_nobody_else_and_hold_up_no_end(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscribers, "CLOSE_WITHIN", 0.2)
    heard: list[str] = []
    released: list[bool] = []
    release = threading.Event()

    def hang() -> Callable[[JobEvent], object]:
        return lambda event: released.append(release.wait(100))

    for _ in range(8):
        app.on("succeeded")(hang())
    app.on("succeeded")(lambda event: heard.append(event.job_id))

    @app.task(name="work")
    async def work() -> None: ...

    async with app.worker():
        jobs = await app.aenqueue_many([work.job() for _ in range(6)])
        await auntil(lambda: len(heard) == 6)
        assert sorted(heard) == sorted(job.id for job in jobs)
    assert released == []
    release.set()
    await auntil(lambda: not listening())


def listening() -> list[str]:
    """The threads of plain listeners."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("perdure-listener")]


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_flood_is_cut_off_and_both_its_ends_are_told(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    monkeypatch.setattr(subscribers, "MOST", 4)
    monkeypatch.setattr(subscribers, "LIMIT", 60.0 if kind == "async" else 0.1)
    heard: list[str] = []
    called, release = threading.Event(), threading.Event()

    async def on_loop(event: JobEvent) -> None:
        called.set()
        await auntil(release.is_set)
        heard.append(event.job_id)

    def in_thread(event: JobEvent) -> None:
        called.set()
        release.wait(30)
        heard.append(event.job_id)

    name = "on_loop" if kind == "async" else "in_thread"
    app.on("succeeded")(on_loop if kind == "async" else in_thread)

    @app.task(name="work")
    async def work(n: int) -> None: ...

    async with app.worker() as worker:
        for n in range(12):
            await (await work.aenqueue(n)).aget(30)
            await auntil(called.is_set)
        await auntil(lambda: not worker.leases())
        await auntil(lambda: f"{name} lags" in caplog.text)
        release.set()
        # One that is being told in a thread no longer waits.
        told = 4 if kind == "async" else 5
        await auntil(lambda: f"{name} keeps up again; it missed {12 - told} events" in caplog.text)
        await auntil(lambda: len(heard) == told)
        await (await work.aenqueue(12)).aget(30)
        await auntil(lambda: len(heard) == told + 1)
    assert caplog.text.count("lags") == 1


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_task_hears_of_its_own_failures_only(app: App, kind: str) -> None:
    heard: list[JobEvent] = []

    async def on_loop(event: JobEvent) -> None:
        heard.append(event)

    def fail() -> None:
        raise ValueError

    listener: Any = heard.append if kind == "thread" else on_loop
    app.task(name="mine", max_attempts=2, backoff=0.01, on_failed=listener)(fail)
    app.task(name="other", max_attempts=1)(fail)
    async with app.worker(poll=0.05):
        mine, other = await app.tasks["mine"].aenqueue(), await app.tasks["other"].aenqueue()
        await until_state(mine, "failed")
        await until_state(other, "failed")
        await auntil(lambda: heard)
    assert [(event.job_id, event.attempt) for event in heard] == [(mine.id, 2)]


async def test_the_last_event_is_heard_before_a_worker_is_gone(app: App) -> None:
    heard: list[str] = []

    @app.on("succeeded")
    async def listen(event: JobEvent) -> None:
        await asyncio.sleep(0.2)
        heard.append(event.job_id)

    @app.task(name="work")
    async def work() -> None: ...

    async with app.worker():
        job = await work.aenqueue()
        await job.aget(30)
    assert heard == [job.id]


async def test_what_is_given_back_and_what_was_lost_is_told(brisk_app: App) -> None:
    told: list[str] = []
    begun: list[str] = []
    brisk_app.on("given_back", "lease_lost")(lambda event: told.append(event.name))

    @brisk_app.task(name="rest")
    async def rest() -> None:
        begun.append("rest")
        await asyncio.sleep(60)

    async with brisk_app.worker(drain=0) as worker:
        await rest.aenqueue()
        await auntil(lambda: begun)
        await brisk_app.operations.aretire(worker.identity)
        await auntil(lambda: told)
        # What was only claimed goes back without an event.
        await auntil(lambda: len(begun) == 2)
    assert told == ["lease_lost", "given_back"]


def test_an_unknown_event_is_refused(app: App) -> None:
    with pytest.raises(InvalidOption):
        app.on("finished")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption):
        app.on()


async def test_without_listeners_nothing_is_told(app: App, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    app.task(name="work")(lambda: None)
    async with app.worker() as worker:
        await (await app.tasks["work"].aenqueue()).aget(30)
        assert worker._hooks.quiet
