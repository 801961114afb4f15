"""The life of a job through the async methods."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from perdure.errors import IdempotencyConflict, JobFailed, JobNotFound, TaskDisabled, UnknownTask, WaitTimeout
from perdure.model.lifecycle import Failed, Report, Succeeded
from perdure.ops.report import JobReport, LogLine
from tests.conformance.world import LEASE, World, ids


@pytest_asyncio.fixture
async def aworld(url: str) -> AsyncIterator[World]:
    world = await asyncio.to_thread(World, url)
    yield world
    await world.app.aclose()


async def test_a_life_from_enqueue_to_result(aworld: World) -> None:
    work, app, operations = aworld.task(queue="mail", backoff=0), aworld.app, aworld.operations
    job = await work.using(idempotency_key="k").aenqueue(7)
    again = await work.using(idempotency_key="k").aenqueue(7)
    assert (job.created, again.created, again.id) == (True, False, job.id)
    with pytest.raises(IdempotencyConflict):
        await work.using(idempotency_key="k").aenqueue(8)
    await operations.aregister("async", name="async", lease=LEASE)
    (claimed,) = await operations.aclaim("async", tasks=["work"], n=5, queues=["mail"])
    said = JobReport(claimed.lease, Report(done=1, total=2), [LogLine("info", "hi")])
    assert await operations.areport([said]) == ["ok"]
    assert (await operations.aheartbeat("async")).running == [claimed.lease]
    aworld.advance(1)
    assert (await operations.afinish([Failed(claimed.lease, "error")])).accepted == [claimed.lease]
    with pytest.raises(WaitTimeout):
        await job.aget(timeout=0.01)
    _, (second,) = await operations.acycle("async", [], tasks=["work"], n=1)
    waiter = asyncio.create_task(job.aget())
    await operations.afinish([Succeeded(second.lease, "7")])
    assert await waiter == 7
    assert [entry.what for entry in await app.ajob_history(job.id)] == [
        "enqueued",
        "started",
        "log",
        "error",
        "started",
        "succeeded",
    ]


async def test_operators_have_twins(aworld: World) -> None:
    work, app = aworld.task(), aworld.app
    job, other, third = await app.aenqueue_many([work.job(n) for n in range(3)])
    assert await app.acancel_job(job.id, reason="x") == "canceled"
    assert await job.arequeue() == "requeued"
    assert await app.arequeue_job(other.id) == "not_ended"
    assert await app.arun_now(other.id) == "already_due"
    assert await other.acancel() == "canceled"
    assert await app.adelete_job(other.id) == "deleted"
    assert await app.acount_jobs() == {"default": {"ready": 2}}
    assert ids(await app.alist_jobs()) == [third.id, job.id]
    assert [found and found.id for found in await app.aget_jobs([other.id, job.id])] == [None, job.id]
    with pytest.raises(JobNotFound):
        await app.aget_job(other.id)
    await app.apause_queue("default")
    assert await aworld.operations.aclaim(aworld.worker, tasks=["work"], n=1) == []
    await app.aresume_queue("default")
    await app.aset_queue("default", backoff=3)
    assert [queue.name for queue in await app.alist_queues()] == ["default"]
    assert [worker.id for worker in await app.alist_workers()] == [aworld.worker]
    assert list(await app.aoldest_ready()) == ["default"]


async def test_refusals_are_the_same(aworld: World) -> None:
    work, app = aworld.task(), aworld.app
    await app.asave_tasks()
    await app.aset_task("work", enabled=False)
    with pytest.raises(TaskDisabled):
        await work.adelay()
    with pytest.raises(UnknownTask):
        await app.aenqueue("nobody.has.it")
    await app.aset_task("work", enabled=True)
    job = await app.aenqueue("work", {"n": 1})
    (claimed,) = await aworld.operations.aclaim(aworld.worker, tasks=["work"], n=1)
    await aworld.operations.afinish([Failed(claimed.lease, "fatal")])
    await job.ajoin()
    with pytest.raises(JobFailed):
        await job.aget()
    assert (await job.arefresh()).state == "failed"


async def test_a_sweep_has_twins(aworld: World) -> None:
    work = aworld.task()
    running, expiring = await aworld.app.aenqueue_many(
        [work.using(priority=1).job(), work.using(expires=1).job()]
    )
    await aworld.operations.aclaim(aworld.worker, tasks=["work"], n=1)
    await aworld.operations.aretire(aworld.worker)
    assert [change.id for change in await aworld.operations.arescue()] == [running.id]
    aworld.advance(1)
    assert await aworld.operations.aexpire() == 1
    assert (await expiring.arefresh()).state == "canceled"


async def test_many_callers_at_once(aworld: World) -> None:
    work = aworld.task()
    jobs: list[Any] = await asyncio.gather(*(work.aenqueue(n) for n in range(40)))
    assert len({job.id for job in jobs}) == 40
    taken = await asyncio.gather(
        *(aworld.operations.aclaim(aworld.worker, tasks=["work"], n=7) for _ in range(8))
    )
    assert sorted(job.id for batch in taken for job in batch) == sorted(ids(jobs))
    leases = [job.lease for batch in taken for job in batch]
    finished = await asyncio.gather(*(aworld.operations.afinish([Succeeded(lease)]) for lease in leases))
    assert [one.refused for one in finished] == [[]] * 40
    assert await aworld.app.acount_jobs() == {"default": {"succeeded": 40}}
