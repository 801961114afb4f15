"""A block of ``ctx.transaction()`` and what cannot be done inside it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import CONTEXT, App, Context
from perdure.errors import Refused


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_second_block_inside_the_first_is_refused_at_once(app: App, kind: str) -> None:
    codes: list[str] = []

    async def on_loop(*, ctx: Context = CONTEXT) -> None:
        async with ctx.transaction():
            try:
                async with ctx.transaction():
                    pass
            except Refused as refusal:
                codes.append(refusal.code)

    def in_thread(*, ctx: Context = CONTEXT) -> None:
        with ctx.transaction():
            try:
                with ctx.transaction():
                    pass
            except Refused as refusal:
                codes.append(refusal.code)

    function: Any = on_loop if kind == "async" else in_thread
    task = app.task(name="work", max_attempts=1)(function)
    async with app.worker():
        job = await task.aenqueue()
        await job.aget(30)
    assert codes == ["job.nested_transaction"]


async def test_a_block_after_one_that_failed_is_no_second_one(app: App) -> None:
    @app.task(name="work", max_attempts=1)
    def work(*, ctx: Context = CONTEXT) -> None:
        for again in (True, False):
            try:
                with ctx.transaction():
                    if again:
                        raise ValueError
            except ValueError:
                pass

    async with app.worker():
        job = await work.aenqueue()
        await job.aget(30)


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_write_that_would_wait_for_its_own_block_is_refused_on_sqlite(
    sqlite_url: str, kind: str
) -> None:
    app = App(sqlite_url, synchronous="normal")
    codes: list[str] = []

    @app.task(name="other")
    async def other() -> str:
        return "done"

    async def on_loop(*, ctx: Context = CONTEXT) -> None:
        async with ctx.transaction() as conn:
            for write in (ctx.asave(1), other.aenqueue()):
                try:
                    await write
                except Refused as refusal:
                    codes.append(refusal.code)
            await app.acount_jobs()
            await asyncio.to_thread(other.using(conn=conn).enqueue)
            # A task of its own waits for the block, as any other writer does.
            beside.append(asyncio.create_task(other.aenqueue()))
            await asyncio.sleep(0)  # it begins
        await beside[0]

    def in_thread(*, ctx: Context = CONTEXT) -> None:
        with ctx.transaction() as conn:
            for write in (lambda: ctx.save(1), other.enqueue):
                try:
                    write()
                except Refused as refusal:
                    codes.append(refusal.code)
            app.count_jobs()
            other.using(conn=conn).enqueue()
        other.enqueue()

    beside: list[asyncio.Task[Any]] = []
    function: Any = on_loop if kind == "async" else in_thread
    task = app.task(name="work", max_attempts=1)(function)
    async with app.worker():
        job = await task.aenqueue()
        await job.aget(30)
        for one in await app.alist_jobs(task="other"):
            assert await one.aget(30) == "done"
    assert codes == ["store.self_locked"] * 2
    assert len(await app.alist_jobs(task="other")) == 2
    await app.aclose()


async def test_an_async_handler_succeeds_with_a_result_inside_its_block(app: App) -> None:
    @app.task(name="work", max_attempts=1)
    async def work(*, ctx: Context = CONTEXT) -> Any:
        async with ctx.transaction() as conn:
            await ctx.asucceed(5, conn=conn)

    async with app.worker():
        job = await work.aenqueue()
        assert await job.aget(30) == 5
