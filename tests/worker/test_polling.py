"""Jobs that become due by time alone are found by looking, however busy the worker is."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from perdure import App
from tests.harness.waiting import auntil
from tests.store.proxy import Proxy


def test_a_job_is_found_in_time_while_outcomes_keep_coming(url: str) -> None:
    app = App(url)
    app.migrate()
    begun = asyncio.Event()
    full_time: list[float] = []

    @app.task(name="staggered")
    async def staggered(seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(begun.wait(), seconds)
            return
        full_time.append(seconds)

    @app.task(name="later")
    async def later() -> None:
        begun.set()

    async def work() -> None:
        # Some slots stay free; an outcome comes more often than the worker would look by itself.
        await app.aenqueue_many([staggered.job(0.1 * n) for n in range(200)])
        job = await later.using(delay=0.5).aenqueue()
        async with app.worker(concurrency=210, poll=0.2):
            await job.ajoin(timeout=30)

    asyncio.run(work())
    app.close()
    assert 0 < len(full_time) < 200, "it did not wait for the others"


async def test_a_job_is_found_though_notices_are_swallowed(postgres_url: str) -> None:
    """The connection that listens is half open: nobody says that it is dead."""
    with Proxy(postgres_url) as proxy:
        app, producer = App(postgres_url, listen_url=proxy.url), App(postgres_url)
        for each in (app, producer):
            each.task(name="work")(lambda: "done")
        async with app.worker(poll=0.3):
            first = await producer.tasks["work"].aenqueue()
            assert await first.aget(30) == "done"
            await auntil(lambda: b"UNLISTEN" in proxy.heard)  # it passed its test, and listens
            proxy.freeze()
            for _ in range(3):
                job = await producer.tasks["work"].aenqueue()
                assert await job.aget(30) == "done"
        await app.aclose()
        await producer.aclose()
