"""The executor of ``asyncio.to_thread`` in a worker's process. Python does not wait for its threads at exit."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from perdure.internal.threads import DaemonThreads

P = ParamSpec("P")
T = TypeVar("T")

MOST_THREADS = 32
"""The most threads. asyncio's own executor has the same limit."""


class DaemonExecutor(ThreadPoolExecutor):
    """Runs calls in daemon threads: a handler that hangs there must not delay the end of the process.

    It is a ThreadPoolExecutor because an event loop accepts no other class. The loop calls only the methods defined
    here.
    """

    def __init__(self) -> None:
        super().__init__(max_workers=1)
        self._daemon_threads = DaemonThreads("perdure-to-thread", limit=MOST_THREADS)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()

        def work() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(fn(*args, **kwargs))
                except BaseException as error:
                    future.set_exception(error)

        self._daemon_threads.submit(work)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._daemon_threads.stop(wait=wait)
