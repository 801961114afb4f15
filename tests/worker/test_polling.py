"""Jobs that become due by time alone are found by looking, however busy the worker is."""

from __future__ import annotations

import asyncio

from perdure import App


def test_a_job_is_found_in_time_while_outcomes_keep_coming(url: str) -> None:
    app = App(url)
    app.migrate()
    begun: list[str] = []

    @app.task(name="staggered")
    async def staggered(seconds: float) -> None:
        await asyncio.sleep(seconds)
        begun.append("staggered")

    @app.task(name="later")
    async def later() -> None:
        begun.append("later")

    async def work() -> None:
        # Some slots stay free; an outcome comes more often than the worker would look by itself.
        await app.aenqueue_many([staggered.job(0.1 * n) for n in range(30)])
        job = await later.using(delay=0.5).aenqueue()
        async with app.worker(concurrency=40, poll=0.2):
            await job.ajoin(timeout=30)

    asyncio.run(work())
    app.close()
    assert begun.index("later") < 20, "it did not wait for the others"
