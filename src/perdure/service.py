"""A worker for an app: in a process of its own, or beside whatever else an event loop does."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from perdure.serving import Serving
from perdure.worker.options import WorkerOptions
from perdure.worker.worker import Worker


def serve(app: Serving, options: WorkerOptions) -> int:
    """Run a worker until it is stopped by a signal, or a burst is over; return its exit code."""
    return asyncio.run(_serve(app, options))


@asynccontextmanager
async def beside(app: Serving, options: WorkerOptions) -> AsyncIterator[Worker]:
    """A worker in the running loop, for as long as the block lasts."""
    worker = await make_worker(app, options)
    running = asyncio.create_task(worker.run(), name="perdure worker")
    ready = asyncio.create_task(worker.ready.wait())
    await asyncio.wait((running, ready), return_when=asyncio.FIRST_COMPLETED)
    ready.cancel()
    try:
        yield worker
    finally:
        worker.stop()
        await running


async def make_worker(app: Serving, options: WorkerOptions) -> Worker:
    await app.async_()
    handlers = {name: task.handler for name, task in app.tasks.items()}
    return Worker(app.ledger, handlers, options, listeners=app.listeners)


async def _serve(app: Serving, options: WorkerOptions) -> int:
    worker = await make_worker(app, options)
    with _stopped_by_signals(worker):
        return int(await worker.run())


@contextmanager
def _stopped_by_signals(worker: Worker) -> Iterator[None]:
    """The first signal stops the worker in order, the second ends the process at once.

    Python's own handlers, not the loop's: they also run while a handler blocks the loop.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    seen: list[int] = []

    def stop(number: int, _frame: object) -> None:
        if seen:
            os._exit(128 + number)
        seen.append(number)
        loop.call_soon_threadsafe(worker.stop)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
