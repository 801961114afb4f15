"""The app whose workers are killed while they run a workflow; its database is the environment's."""

from __future__ import annotations

import asyncio
import os

from perdure import CONTEXT, App, Context

app = App(lease=2)


@app.task(name="step", max_attempts=100, backoff=0.01, max_crashes=None)
async def step(key: str, *, ctx: Context = CONTEXT) -> str:
    """Note each start, with how many parents it saw succeed."""
    note = f"{key} {ctx.attempt} {len(ctx.results)}\n".encode()
    file = os.open(os.environ["FLOW_NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, note)
    os.close(file)
    await asyncio.sleep(0.02)
    return key


if __name__ == "__main__":
    raise SystemExit(app.run_worker(concurrency=10, poll=0.1))
