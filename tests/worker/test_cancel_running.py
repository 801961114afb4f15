"""``when_full="cancel_running"`` with real workers: the old handler is stopped, and then the new one runs."""

from __future__ import annotations

import asyncio

import pytest

from perdure import App


@pytest.mark.parametrize("slots", [2, 1], ids=["a free slot", "no free slot"])
async def test_a_newer_job_replaces_the_running_one(app: App, slots: int) -> None:
    began = asyncio.Event()
    running: list[int] = []
    most = 0

    @app.task(name="preview", concurrency=1, when_full="cancel_running")
    async def preview(version: int) -> int:
        nonlocal most
        running.append(version)
        most = max(most, len(running))
        began.set()
        try:
            await asyncio.sleep(3600 if version == 1 else 0)
        finally:
            running.remove(version)
        return version

    async with app.worker(concurrency=slots):
        old = await preview.aenqueue(1)
        await asyncio.wait_for(began.wait(), 30)
        new = await preview.aenqueue(2)
        assert await new.aget(30) == 2
    assert (await old.arefresh()).state == "canceled"
    assert most == 1
