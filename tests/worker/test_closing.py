"""A program that closes its app under a running worker ends it."""

from __future__ import annotations

import asyncio

from perdure import App
from perdure.client import worker_run
from perdure.worker.options import Exit, WorkerOptions


def test_a_worker_whose_app_is_closed_stops(url: str) -> None:
    app = App(url)
    app.migrate()

    @app.task(name="work")
    async def work() -> None: ...

    async def live() -> Exit:
        worker = worker_run.make_worker(app, WorkerOptions(poll=0.05))
        running = asyncio.create_task(worker.run())
        await worker.ready.wait()
        await app.aclose()
        return await running

    assert asyncio.run(live()) == Exit.CRASHED
