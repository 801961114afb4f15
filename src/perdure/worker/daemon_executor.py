"""Where ``asyncio.to_thread`` goes in a worker's process. Python waits at its end for threads of other executors."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from perdure.internal.threads import DaemonThreads

P = ParamSpec("P")
T = TypeVar("T")

MOST_THREADS = 32
"""As many as asyncio's own may have."""


class DaemonExecutor(ThreadPoolExecutor):
    """A handler that hangs there was given up: it may not hold up the end of the process.

    A ThreadPoolExecutor because an event loop takes nothing else; of that it uses these two methods only.
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
