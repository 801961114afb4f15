"""Every method that waits exists twice, blocking and async, from one definition."""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

import pytest

from perdure import App, Job, Middleware
from perdure.client.task import Enqueuer
from perdure.client.views import Views
from perdure.errors import BlockingCall
from perdure.plan.plan import async_method, refuse_in_event_loop, sync_method
from perdure.worker.operations import WorkerOperations

METHODS = {
    App: """
        append_steps cancel_job cancel_jobs cancel_workflow check_schema close count_jobs count_jobs_by delete_job
        delete_jobs enqueue enqueue_many explain_job get_job get_jobs get_task get_workflow
        job_history list_acts list_jobs list_limits list_queues list_tasks list_workers list_workflows migrate
        oldest_ready pause_queue replay_job requeue_job requeue_jobs requeue_workflow reset_limit reset_queue
        resolve_gate resume_queue run_jobs_now run_now save_tasks set_limit set_queue set_task start_workflow stats
        warm_queue
    """,
    Views: """
        failed_steps job jobs migration_sql migrations task_queues whole_job_id whole_workflow_id workers workflow
        workflows
    """,
    Job: "cancel get join refresh requeue",
    Enqueuer: "delay enqueue",
    WorkerOperations: "claim cycle expire finish heartbeat lead peek register report rescue retire retire_silent "
    "supersede",
}


def members(owner: type, kind: type) -> dict[str, Any]:
    names = {name: inspect.getattr_static(owner, name) for name in dir(owner)}
    return {name: member for name, member in names.items() if isinstance(member, kind)}


@pytest.mark.parametrize("owner", METHODS)
def test_the_methods_are_these(owner: type) -> None:
    assert sorted(members(owner, sync_method)) == METHODS[owner].split()


@pytest.mark.parametrize("owner", METHODS)
def test_every_method_has_an_async_version_of_the_same_definition(owner: type) -> None:
    methods, versions = members(owner, sync_method), members(owner, async_method)
    assert sorted(versions) == sorted(f"a{name}" for name in methods)
    for name, method in methods.items():
        assert inspect.unwrap(method._method) is inspect.unwrap(versions[f"a{name}"]._method)


@pytest.mark.parametrize("owner", METHODS)
def test_every_method_says_what_it_does(owner: type) -> None:
    for name in members(owner, sync_method):
        assert inspect.cleandoc(getattr(owner, name).__doc__).splitlines()[0].endswith(".")


@pytest.mark.parametrize("owner", METHODS)
def test_help_shows_the_method_and_not_the_plan_behind_it(owner: type) -> None:
    for name in (*members(owner, sync_method), *members(owner, async_method)):
        method = getattr(owner, name)
        signature = inspect.signature(method)
        assert (method.__name__, next(iter(signature.parameters))) in ((name, "self"), ("delay", "self"))
        assert "Plan" not in str(signature)


@pytest.mark.parametrize("method", METHODS[App].split())
async def test_a_blocking_method_in_an_event_loop_is_refused_and_names_the_async_one(method: str) -> None:
    app = App("postgresql://nobody@nowhere.invalid/nothing")
    with pytest.raises(BlockingCall, match=rf"^{method}\(\) blocks .*: await a{method}\(\) instead\.$"):
        getattr(app, method)()
    assert app._store is None, "nothing was opened"


async def test_a_worker_has_no_async_version_and_names_the_block_that_there_is_instead() -> None:
    with pytest.raises(BlockingCall, match=r": use async with app\.worker\(\) instead\.$"):
        App("postgresql://nobody@nowhere.invalid/nothing").run_worker()


async def test_a_blocking_method_in_a_thread_of_its_own_is_not(sqlite_url: str) -> None:
    app = App(sqlite_url)
    assert await asyncio.to_thread(app.list_jobs) == []
    await app.aclose()


async def test_both_versions_do_the_same(url: str) -> None:
    app = App(url)
    await app.amigrate()
    app.task(name="work")(lambda n: n)
    job = await app.aenqueue("work", {"n": 1})
    seen = await asyncio.to_thread(app.get_job, job.id)
    assert (await app.aget_job(job.id)).row == seen.row is not None
    await app.aclose()


def test_a_module_that_another_thread_is_importing_runs_no_event_loop_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "asyncio", ModuleType("asyncio"))
    refuse_in_event_loop("enqueue")


class Swallowing(Middleware):
    """What a user may write: it catches everything, also a cancellation."""

    @contextmanager
    def enqueue(self, task: str, meta: dict[str, Any]) -> Iterator[None]:
        with suppress(BaseException):
            yield


async def test_a_middleware_that_catches_everything_does_not_swallow_a_cancellation(sqlite_url: str) -> None:
    async with App(sqlite_url) as app:
        task = app.task(name="work")(lambda: None)
        app.use(Swallowing())
        await app.asave_tasks()
        lock = sqlite3.connect(app.store.path)  # type: ignore[attr-defined]
        lock.execute("BEGIN IMMEDIATE")  # so that the enqueue waits
        enqueuing = asyncio.create_task(task.aenqueue())
        await asyncio.sleep(0)
        enqueuing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await enqueuing
        lock.rollback()
        lock.close()
