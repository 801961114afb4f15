"""What operators set for a task, as its handlers read it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import pytest

from perdure import CONTEXT, App, Context
from perdure.errors import JobFailed
from perdure.model.job import SECOND
from tests.harness.waiting import auntil
from tests.worker import config_app


def meddle(config: Mapping[str, Any]) -> None:
    """What a handler might do to it."""
    with pytest.raises(TypeError):
        config["limit"] = 0  # type: ignore[index]
    for nested in config.values():
        if isinstance(nested, list):
            nested.clear()


def add_tasks(app: App) -> None:
    @app.task(name="on_loop", aliases=["former", "oldest"])
    async def on_loop(*, ctx: Context = CONTEXT) -> dict[str, Any]:
        meddle(ctx.config)
        return {**ctx.config}

    @app.task(name="in_thread")
    def in_thread(*, ctx: Context = CONTEXT) -> dict[str, Any]:
        meddle(ctx.config)
        return {**ctx.config, "current": dict(Context.current().config) == ctx.config}


async def run(app: App, task: str) -> Any:
    """By name, from a program that does not know which names are aliases."""
    other = App(app.database.url)
    job = await other.aenqueue(task)
    result = await job.aget(timeout=30)
    await other.aclose()
    return result


async def test_handlers_on_the_loop_and_in_threads_read_it(app: App) -> None:
    add_tasks(app)
    await app.asave_tasks()
    await app.aset_task("on_loop", config={"limit": 3, "hosts": ["a"]})
    async with app.worker():
        for _ in range(2):
            assert await run(app, "on_loop") == {"limit": 3, "hosts": ["a"]}, "whatever the one before did"
        assert await run(app, "in_thread") == {"current": True}
        assert await run(app, "former") == {"limit": 3, "hosts": ["a"]}, "an alias is the same task"


async def test_an_alias_may_have_its_own(app: App) -> None:
    add_tasks(app)
    await app.asave_tasks()
    await app.aset_task("on_loop", config={"limit": 3})
    await app.aset_task("former", config={})
    async with app.worker():
        assert await run(app, "former") == {}
        assert await run(app, "oldest") == {"limit": 3}


async def test_a_worker_that_does_nothing_hears_of_a_change(app: App) -> None:
    app.lease = 3600 * SECOND  # no heartbeat comes
    add_tasks(app)
    async with app.worker() as worker:
        assert await run(app, "on_loop") == {}
        await app.aset_task("on_loop", config={"limit": 4})
        await auntil(lambda: worker._identity.configs == {"on_loop": '{"limit":4}'})
        assert await run(app, "on_loop") == {"limit": 4}


async def test_a_worker_that_hears_nothing_learns_it_with_its_heartbeat(
    brisk_app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_tasks(brisk_app)
    async with brisk_app.worker() as worker:
        monkeypatch.setattr(worker, "_wake", lambda topics: None)
        await brisk_app.aset_task("on_loop", config={"limit": 5})
        await auntil(lambda: worker._identity.configs == {"on_loop": '{"limit":5}'})


async def test_a_handler_in_a_process_reads_it(url: str) -> None:
    app = App(url, synchronous="normal")
    app.task(name="tell", run_in="process")(config_app.tell)
    await app.asave_tasks()
    await app.aset_task("tell", config={"limit": 3})
    async with app.worker(processes=1, target=config_app.TARGET):
        assert await run(app, "tell") == {"limit": 3}
    await asyncio.to_thread(app.close)


def test_tests_of_users_read_it(sqlite_url: str) -> None:
    app = App(sqlite_url)
    add_tasks(app)
    with app.testing() as block:
        app.save_tasks()
        for config in ({"limit": 3}, {"limit": 4}, None):
            app.set_task("on_loop", config=config)
            job = app.enqueue("on_loop")
            block.run_until_idle()
            assert job.refresh().result == (config or {})
    app.close()


def test_a_plain_call_has_none_unless_it_is_given_one(sqlite_url: str) -> None:
    app = App(sqlite_url)
    add_tasks(app)
    task = app.tasks["in_thread"].function
    assert task(ctx=Context()) == {"current": True}
    assert Context(config={"limit": 3}).config == {"limit": 3}


@pytest.mark.parametrize("config", ["[1]", '"text"', "3", "null"])
async def test_a_config_that_is_no_object_is_told_by_its_task(app: App, config: str) -> None:
    add_tasks(app)
    await app.asave_tasks()
    _write_config(app, config)
    assert [facts.config for facts in await app.alist_tasks() if facts.name == "on_loop"] == [None]
    async with app.worker():
        job = await app.tasks["on_loop"].using(max_attempts=1).aenqueue()
        with pytest.raises(JobFailed, match=job.id):
            await job.aget(timeout=30)
        assert job.error is not None
        assert "config of the task on_loop" in job.error.message
    await app.aset_task("on_loop", config={})
    assert (await app.aget_task("on_loop")).config == {}


def _write_config(app: App, config: str) -> None:
    """As somebody may who writes to our tables."""
    with closing(app.store.connect()) as connection:
        if app.store.dialect == "sqlite":
            connection.execute("UPDATE perdure_task SET config = ? WHERE name = 'on_loop'", [config])
        else:
            connection.execute("UPDATE perdure.task SET config = %s WHERE name = 'on_loop'", [config])
        connection.commit()
