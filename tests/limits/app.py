"""The app whose limits are tested. Its database comes from the environment."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from perdure import App, Backoff

# A killed process loses nothing that was written; only a crash of the machine would.
app = App(lease=1, synchronous="normal")
app.limit("device", concurrency=3)
app.queue("narrow", concurrency=6)
TOUGH: dict[str, Any] = {"max_attempts": 10_000, "max_crashes": None, "backoff": Backoff(base=0.01, cap=0.1)}


@app.task(name="one", concurrency=5, **TOUGH)
async def one(key: int) -> None:
    await work()


@app.task(name="keyed", concurrency=2, concurrency_key="{key}", **TOUGH)
async def keyed(key: int) -> None:
    await work()


@app.task(name="device", limits=["device"], **TOUGH)
async def device(key: int) -> None:
    await work()


@app.task(name="both", concurrency=1, concurrency_key="{key}", limits=["device"], **TOUGH)
async def both(key: int) -> None:
    await work()


@app.task(name="narrow", queue="narrow", **TOUGH)
async def narrow(key: int) -> None:
    await work()


@app.task(name="both narrow", queue="narrow", limits=["device"], **TOUGH)
async def both_narrow(key: int) -> None:
    await work()


@app.task(name="free", **TOUGH)
async def free(key: int) -> None:
    await work()


async def work() -> None:
    await asyncio.sleep(random.uniform(0, 0.03))
