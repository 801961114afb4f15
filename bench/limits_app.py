"""The app whose jobs the benchmark of limits runs; its database comes from the environment."""

from __future__ import annotations

from perdure import App

app = App()
"""On $PERDURE_URL."""
app.limit("shared", concurrency=500)
app.queue("narrow", concurrency=500)


@app.task(name="free")
async def free(n: int) -> None: ...


@app.task(name="queue", queue="narrow")
async def queue(n: int) -> None: ...


@app.task(name="whole", concurrency=500)
async def whole(n: int) -> None: ...


@app.task(name="named", limits=["shared"])
async def named(n: int) -> None: ...


@app.task(name="keyed", concurrency=3, concurrency_key="{n}")
async def keyed(n: int) -> None: ...
