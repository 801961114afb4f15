"""A handler that asks ctx.check() ends as is right for whatever it was stopped for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from perdure import App, Context, Job
from perdure.request.signals import Stopped
from tests.harness.waiting import auntil
from tests.worker import check_app
from tests.worker.waiting import time_out

TASKS = ["thread", "loop", "both", "process", "async process"]
# How a handler is told to stop has nothing to do with the database: on PostgreSQL most of it is a long test.
EVERYWHERE = pytest.mark.parametrize(
    ("url", "task"),
    [
        *(("sqlite", task) for task in TASKS),
        *(("postgres", task) for task in ("thread", "process")),
        *(
            pytest.param("postgres", task, marks=pytest.mark.long)
            for task in ("loop", "both", "async process")
        ),
    ],
    indirect=["url"],
)


@pytest.fixture
async def app(url: str) -> AsyncIterator[App]:
    async with check_app.make(url, lease=1) as app:
        yield app


def working(app: App, task: str, **options: Any) -> Any:
    return app.worker(processes=int("process" in task), target=check_app.TARGET, **options)


async def begun(job: Job[Any]) -> None:
    async def saved() -> bool:
        row = (await job.arefresh()).row
        return row is not None and row.checkpoint is not None

    await auntil(saved)


@EVERYWHERE
async def test_after_a_cancel_it_is_canceled(app: App, task: str) -> None:
    async with working(app, task):
        job = await app.aenqueue(task)
        await begun(job)
        await job.acancel(reason="enough")
        await job.ajoin(30)
    assert (job.state, job.attempt, job.error) == ("canceled", 1, None)


@EVERYWHERE
async def test_after_its_timeout_it_has_timed_out(app: App, task: str) -> None:
    async with working(app, task) as worker:
        job = await app.aenqueue(task, max_attempts=1)
        await begun(job)
        time_out(worker)
        await job.ajoin(30)
    assert job.state == "failed"
    assert job.error is not None
    assert (job.error.kind, job.error.trace) == ("timeout", None)


@EVERYWHERE
async def test_when_its_worker_stops_it_is_given_back_at_no_cost(app: App, task: str) -> None:
    async with working(app, task, drain=0.1):
        job = await app.aenqueue(task)
        await begun(job)
    await job.arefresh()
    assert (job.state, job.attempt) == ("ready", 0)
    assert job.error is not None
    assert job.error.kind == "interrupted"


@pytest.mark.parametrize("task", ["thread", "loop"])
async def test_when_its_lease_is_lost_nothing_is_recorded(app: App, task: str) -> None:
    async with working(app, task) as worker:
        job = await app.aenqueue(task)
        await begun(job)
        await app.operations.aretire(worker.identity)
        await app.operations.arescue()
        assert await job.aget(30) == "went on"
    told = [entry.what for entry in await app.ajob_history(job.id)]
    assert told == ["enqueued", "started", "lost", "started", "succeeded"]


@pytest.mark.parametrize("task", ["save", "save in a process"])
async def test_a_cancel_that_only_a_save_has_heard_of_counts(
    app: App, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.worker.attempt.Attempt.stop", lambda *_: None)
    async with working(app, task):
        job = await app.aenqueue(task)
        await begun(job)
        await job.acancel()
        await job.ajoin(30)
    assert (job.state, job.error) == ("canceled", None)


def test_outside_a_job_it_asks_the_context_it_was_given() -> None:
    context = Context()
    context.check()
    context.cancel_requested = True
    with pytest.raises(Stopped):
        context.check()
