"""A server that answers every statement about jobs with an error: workers wait for it, as for one that is away."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from perdure import App
from tests.harness.waiting import auntil
from tests.store.proxy import Proxy
from tests.worker.refusing import refusing
from tests.worker.waiting import until_state

SECONDS = 3.0


@pytest.mark.parametrize("code", ["P0001", "40001", "42P01"])
async def test_a_server_that_refuses_all_jobs_gets_few_statements(postgres_url: str, code: str) -> None:
    """Two workers that only wait send about 35 in this time, or 60 where each statement is retried once."""
    errors, began, done = [0], [0], asyncio.Event()

    def count(data: bytes) -> bytes:
        errors[0] += data.count(b"VERROR\0")
        return data

    with Proxy(postgres_url) as proxy:
        proxy.on_reply = count
        apps = [App(proxy.url) for _ in range(2)]
        async with AsyncExitStack() as stack:
            for app in apps:

                @app.task(name="work")
                async def work() -> None:
                    began[0] += 1
                    await done.wait()

                await stack.enter_async_context(app.worker(concurrency=10))
            some = await apps[0].aenqueue_many([apps[0].tasks["work"].job() for _ in range(20)])
            await auntil(lambda: began[0] == 20)
            with refusing(postgres_url, "OLD.state <> 'succeeded'", code=code):
                done.set()
                others = await apps[0].aenqueue_many([apps[0].tasks["work"].job() for _ in range(100)])
                errors[0] = 0
                await asyncio.sleep(SECONDS)
                assert errors[0] < 180
            for job in (*some, *others):
                await until_state(job, "succeeded")
        for app in apps:
            await app.aclose()
    assert began[0] == 120
