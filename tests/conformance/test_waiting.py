"""Waiting for a job: notifications wake the waiter, none is missed, and it polls where none arrive."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from perdure.client import job as job_module
from perdure.client.job import LEAST_PAUSE, Job
from perdure.errors import InvalidOption, WaitTimeout
from perdure.model.lifecycle import Succeeded
from perdure.ops import browse
from perdure.ops.notify import notify
from perdure.ops.topics import ENDED
from perdure.plan.plan import Call, WaitFor
from perdure.plan.wakeup import Wakeup
from tests.conformance.test_handle import meanwhile
from tests.conformance.world import World
from tests.harness.processes import conversation
from tests.harness.waiting import auntil, until

SOME_ENDED = frozenset([ENDED])


@pytest.fixture
def no_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_module, "FIRST_LOOK", 3600.0)
    monkeypatch.setattr(job_module, "SLOWEST_LOOK", 3600.0)


def end_and_notify(world: World) -> None:
    world.attempt(Succeeded, "42")
    world.store.perform(notify, SOME_ENDED)


def listeners(world: World) -> int:
    """Besides the world's own listener."""
    return len(world.store._listeners._listeners) - 1  # type: ignore[attr-defined]


def while_somebody_waits(world: World, act: Callable[[], object]) -> Callable[[], None]:
    def wait_and_act() -> None:
        until(lambda: listeners(world) == 1)
        act()

    return wait_and_act


@contextmanager
def looks(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The times at which a job was read."""
    times: list[float] = []
    perform = world.store.perform

    def counting(operation: Any, *args: Any, **kwargs: Any) -> Any:
        if operation is browse.get_job:
            times.append(time.monotonic())
        return perform(operation, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(world.store, "perform", counting)
        yield times


@contextmanager
def another_worker(world: World) -> Iterator[Callable[[], None]]:
    """A process that ends one job and notifies, when it is called."""
    script = """
import sys
from perdure.model.lifecycle import Succeeded
from perdure.ops.notify import notify
from perdure.store.store import open_store
from perdure.worker.operations import WorkerOperations
store = open_store(sys.argv[1], clock=lambda: int(sys.argv[2]))
operations = WorkerOperations(store)
operations.register("other", name="other", lease=30_000_000)
print("ready", flush=True)
for line in sys.stdin:
    (job,) = operations.claim("other", tasks=["work"], n=1)
    operations.finish([Succeeded(job.lease, "42")])
    store.perform(notify, frozenset(["ended"]))
    print("ended", flush=True)
store.close()
"""
    with conversation("-c", script, world.url, world.now) as tell:

        def end_one() -> None:
            assert tell("end one") == "ended"

        yield end_one


def test_a_job_that_another_process_ended_is_heard_of(no_polling: None, world: World) -> None:
    work = world.task()
    with another_worker(world) as end_one:
        for _ in range(5):
            job = work.enqueue()
            with meanwhile(while_somebody_waits(world, end_one)):
                assert job.get(timeout=60) == 42
            assert listeners(world) == 0


async def test_async_callers_hear_of_it_too(no_polling: None, world: World) -> None:
    with another_worker(world) as end_one:
        job = await world.task().aenqueue()
        waiter = asyncio.create_task(job.aget(timeout=60))
        await auntil(lambda: listeners(world) == 1)
        end_one()
        assert await waiter == 42


def test_a_job_that_ended_in_this_process_is_heard_of(no_polling: None, world: World) -> None:
    job = world.task().enqueue()
    with meanwhile(while_somebody_waits(world, lambda: end_and_notify(world))):
        assert job.get(timeout=60) == 42


def test_an_end_before_it_listens_is_seen(
    no_polling: None, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, listen = world.task().enqueue(), world.store.listen

    def too_late(listener: Any) -> Callable[[], None]:
        end_and_notify(world)
        return listen(listener)

    monkeypatch.setattr(world.store, "listen", too_late)
    assert job.get(timeout=60) == 42


def test_an_end_between_look_and_wait_is_heard(no_polling: None, world: World) -> None:
    job = world.task().enqueue()
    plan = job._join(60)
    effect: Any = next(plan)
    while not isinstance(effect, WaitFor):
        assert isinstance(effect, Call)
        effect = plan.send(world.store.perform(effect.operation, *effect.args, **effect.kwargs))
    end_and_notify(world)
    effect.wakeup.wait(3600)
    plan.close()
    assert listeners(world) == 0


def test_polling_finds_what_nobody_rang_for(world: World) -> None:
    job = world.task().enqueue()
    with meanwhile(while_somebody_waits(world, lambda: world.attempt(Succeeded, "42"))):
        assert job.get(timeout=60) == 42


@pytest.mark.parametrize("wrong", [math.nan, math.inf, "x", True])
def test_a_timeout_that_is_none_is_refused(world: World, wrong: Any) -> None:
    job = world.task().enqueue()
    for verb in (job.join, job.get):
        with pytest.raises(InvalidOption, match=r"^timeout must be "):
            verb(timeout=wrong)


def test_whoever_need_not_wait_does_not_listen(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    job = world.task().enqueue()
    monkeypatch.setattr(world.store, "listen", None)
    with pytest.raises(WaitTimeout):
        job.join(timeout=0)
    world.attempt(Succeeded, "42")
    assert job.get() == 42


def test_however_often_it_is_notified_looks_have_pauses_and_patience_ends(
    no_polling: None, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, done = world.task().enqueue(), threading.Event()

    def notify_repeatedly() -> None:
        while not done.wait(0.001):
            world.store.announce(SOME_ENDED)

    with meanwhile(notify_repeatedly):
        try:
            before = time.monotonic()
            with pytest.raises(WaitTimeout):
                job.join(timedelta(seconds=0.2))
            assert time.monotonic() - before >= 0.2
            with looks(world, monkeypatch) as times, ThreadPoolExecutor(1) as thread:
                joined = thread.submit(job.join, 60)
                until(lambda: len(times) > 15)  # it does look when it is notified
                seen = times[1:]  # the first look comes before it listens
                world.attempt(Succeeded, "42")
                joined.result(60)
        finally:
            done.set()
    pauses = [later - earlier for earlier, later in pairwise(seen)]
    assert min(pauses) >= LEAST_PAUSE * 0.9


def test_other_topics_wake_nobody(no_polling: None, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    job, calls, set_wakeup = world.task().enqueue(), list[int](), Wakeup.set

    def counted(wakeup: Wakeup) -> None:
        calls.append(1)
        set_wakeup(wakeup)

    def announce() -> None:
        world.store.announce(frozenset(["queue/mail", "worker/one"]))
        assert calls == []
        end_and_notify(world)

    # A listener thread that has just started announces ANYTHING at some time. That is not tested here.
    monkeypatch.setattr(world.store, "listen", world.store.subscribe)
    monkeypatch.setattr(Wakeup, "set", counted)
    with meanwhile(while_somebody_waits(world, announce)):
        job.join(60)


async def test_hundreds_wait_without_a_thread_each(world: World) -> None:
    work = world.task()
    jobs = await world.app.aenqueue_many([work.job() for _ in range(300)])
    waiters = [asyncio.create_task(job.aget(timeout=100)) for job in jobs]
    await auntil(lambda: listeners(world) == 300)
    threads = threading.active_count()
    claimed = await asyncio.to_thread(world.claim, 300)
    await asyncio.to_thread(world.finish, *[Succeeded(job.lease, "42") for job in claimed])
    await world.store.aperform(notify, SOME_ENDED)
    assert await asyncio.gather(*waiters) == [42] * 300
    assert threads < 40
    assert listeners(world) == 0
    assert not job_module._waiters


async def test_who_is_cancelled_stops_listening(world: World) -> None:
    job = await world.task().aenqueue()
    waiter = asyncio.create_task(job.ajoin())
    await auntil(lambda: listeners(world) == 1)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError) as kept:
        await waiter
    assert listeners(world) == 0, f"although {kept} still refers to it"


def test_who_is_interrupted_stops_listening(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    job: Job[int] = world.task().enqueue()

    def interrupt(wakeup: Wakeup, seconds: float) -> None:
        assert listeners(world) == 1
        raise KeyboardInterrupt

    monkeypatch.setattr(Wakeup, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt) as kept:
        job.join()
    assert listeners(world) == 0, f"although {kept} still refers to it"


def test_a_wakeup_is_kept_until_somebody_waits() -> None:
    wakeup = Wakeup()
    wakeup.set()
    wakeup.wait(3600)
    asyncio.run(_set_and_await(wakeup))
    before = time.monotonic()
    wakeup.wait(0.01)
    assert time.monotonic() - before >= 0.01, "and no longer"


async def _set_and_await(wakeup: Wakeup) -> None:
    wakeup.set()
    await wakeup.await_(3600)
    waiter = asyncio.create_task(wakeup.await_(3600))
    await asyncio.sleep(0)
    threading.Thread(target=wakeup.set).start()
    await waiter


def test_a_wakeup_for_a_loop_that_is_gone_is_no_error() -> None:
    wakeup = Wakeup()
    loop = asyncio.new_event_loop()
    waiter = loop.create_task(wakeup.await_(60))
    loop.run_until_complete(asyncio.sleep(0))
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(waiter)
    loop.close()
    wakeup.set()
