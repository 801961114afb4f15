"""The app whose jobs the worker's benchmark runs; its database is the environment's."""

from __future__ import annotations

import asyncio
import time

from perdure import App

app = App()
"""On $PERDURE_URL."""


@app.task(name="nothing")
async def nothing() -> None: ...


@app.task(name="mail")
async def mail(to: str, subject: str) -> dict[str, bool]:
    """Nothing, by a job as wide as those a ledger is filled with."""
    return {"sent": True}


@app.task(name="begun")
async def begun() -> int:
    """When it began to run, by a clock that all processes of the machine share."""
    return time.monotonic_ns()


@app.task(name="linger", max_crashes=None)
async def linger(note: str) -> None:
    """Write down each start, then wait for the end."""
    _write(note, f"{time.monotonic_ns()}\n")
    await asyncio.sleep(3600)


def _write(path: str, line: str) -> None:
    with open(path, "a") as file:
        file.write(line)
