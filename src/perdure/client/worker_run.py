"""Runs an app's worker, in its own process or in a running event loop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace

from perdure.client.worker_api import WorkerMethods
from perdure.errors import InvalidConfig, StoreClosed, Unavailable, WorkerDied
from perdure.plan.plan import arun
from perdure.worker.daemon_executor import DaemonExecutor
from perdure.worker.gc_tuning import collect_by_time
from perdure.worker.health import Health
from perdure.worker.loop_errors import log_redacted
from perdure.worker.loop_watch import WAKE
from perdure.worker.options import Exit, WorkerOptions
from perdure.worker.process.protocol import Load
from perdure.worker.unknown_queues import warn_of_unknown
from perdure.worker.worker import Worker

MOST_IDLE = 2
"""If the event loop stops this many times in a row without running a callback, the worker ends without the loop."""

_log = logging.getLogger("perdure.worker")


def serve(app: WorkerMethods, options: WorkerOptions, target: str | None = None) -> int:
    """Run a worker until a signal stops it or a burst ends; return its exit code."""
    loop = asyncio.new_event_loop()
    loop.set_default_executor(DaemonExecutor())
    with collect_by_time(loop):
        try:
            asyncio.set_event_loop(loop)
            alone = threading.current_thread() is threading.main_thread()
            worker = make_worker(app, replace(options, owns_process=alone), target)
            log_redacted(loop, app.handlers().values())
            return _run(loop, worker, loop.create_task(_serve(app, options, worker)))
        finally:
            loop.run_until_complete(_cancel_leftovers())
            asyncio.set_event_loop(None)
            loop.close()


def _run(loop: asyncio.AbstractEventLoop, worker: Worker, serving: asyncio.Task[int]) -> int:
    """Run the loop until the worker has shut down properly, even if a handler stops the loop or cancels its tasks."""
    idle = 0
    while not serving.done():
        turned: list[bool] = []
        try:
            loop.call_soon(turned.append, True)
            loop.run_until_complete(serving)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if not serving.done():
                _log.error("Code on the event loop stopped it (%s): the worker ends", type(error).__name__)
                idle = 0 if turned else idle + 1
                if idle == MOST_IDLE:
                    worker.end_without_loop(error)
                    raise
                with suppress(RuntimeError):  # the loop was closed
                    serving.cancel()
    if serving.cancelled():
        _log.error("Code on the event loop canceled the worker: it has ended")
        return Exit.CRASHED
    return serving.result()


async def _cancel_leftovers() -> None:
    """Cancel the remaining tasks, as asyncio.run does, but wait at most a second, because a task may not stop."""
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    if rest:
        await asyncio.wait(rest, timeout=1.0)
    await asyncio.get_running_loop().shutdown_asyncgens()


@asynccontextmanager
async def beside(
    app: WorkerMethods, options: WorkerOptions, target: str | None = None
) -> AsyncIterator[Worker]:
    """Run a worker in the running loop until the block ends.

    The end of the block raises WorkerDied if the worker died.
    """
    worker = make_worker(app, options, target)
    await _save_tasks_until_done(app)
    await warn_of_unknown(app.operations.store, options.queues)
    running = asyncio.create_task(worker.run(), name="perdure worker")
    ready = asyncio.create_task(worker.ready.wait())
    try:
        await asyncio.wait((running, ready), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()  # raises an error if the worker could not start
        yield worker
    finally:
        ready.cancel()
        worker.stop()
        await _wait_until_ended(worker, running)
    if worker.status in (Exit.CRASHED, Exit.SLOTS_LOST):
        raise WorkerDied from worker.error


async def _wait_until_ended(worker: Worker, running: asyncio.Task[Exit]) -> None:
    """Wait until the worker has ended. If the caller is cancelled, stop the worker at once, and still wait for it."""
    cancelled = False
    while not running.done():
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            cancelled = True
            worker.stop_at_once()
        except Exception:
            break
    if cancelled:
        raise asyncio.CancelledError
    running.result()


def make_worker(app: WorkerMethods, options: WorkerOptions, target: str | None = None) -> Worker:
    """Create a worker without using the database, which may not be available yet."""
    app.operations.store.use_worker_patience()
    # An earlier worker of this app may have read limits that were changed since. With old limits, a burst might claim
    # nothing and end.
    app.operations.limits_may_have_changed()
    handlers = app.handlers()
    program = find_program(app, target)
    alone = sorted(name for name, handler in handlers.items() if handler.run_in == "process")
    if alone and options.processes == 0:
        if len(alone) == len(handlers):
            raise InvalidConfig("With processes=0 nothing is left to run: every task has run_in='process'.")
        _log.warning("With processes=0 this worker leaves these tasks to other workers: %s", ", ".join(alone))
    if alone and program is None and options.processes != 0:
        raise InvalidConfig(
            f"The task {alone[0]} runs in its own process, and a new process cannot find this app. Define the app in "
            "a module that can be imported, not in the main script. If it is not a global name of the module, give "
            'target="module:name". With processes=0 this worker leaves such tasks to other workers.'
        )
    return Worker(
        app.operations, handlers, options, listeners=app.listeners, program=program, sync=app._save_tasks
    )


async def _save_tasks_until_done(app: WorkerMethods) -> None:
    """Save the app's tasks. If the database is not available yet, wait for it."""
    health = Health()
    while True:
        try:
            return await arun(app.operations.store, app._save_tasks())
        except StoreClosed:
            raise
        except Unavailable as error:
            if error.code == "store.forbidden":
                raise  # waiting does not help
            await asyncio.sleep(health.failed(error))


def find_program(app: WorkerMethods, target: str | None = None) -> Load | None:
    """How a new process can load this app with all its tasks; None if a new process cannot find the app."""
    homes = {home for task in app.tasks.values() if (home := _importable(task.function.__module__))}
    target = target or _find_target(app, homes)
    if target is None:
        return None
    alone = [name for name, task in app.tasks.items() if task.handler.run_in == "process"]
    path = [os.path.abspath(entry) for entry in sys.path]
    return Load(target, sorted(homes), alone, path, app.database.url)


def _find_target(app: WorkerMethods, homes: Collection[str]) -> str | None:
    """``module:name`` of the app; None if no importable module has the app as a global name.

    Modules that define tasks are preferred, because other modules may import much more.
    """
    found = [
        f"{name}:{attribute}"
        for loaded, module in list(sys.modules.items())
        for attribute, value in list(getattr(module, "__dict__", {}).items())
        if value is app and (name := _importable(loaded)) is not None
    ]
    return min(found, key=lambda one: one.partition(":")[0] not in homes, default=None)


def _importable(module: str) -> str | None:
    """The name by which a loaded module can be imported; None for a script.

    ``python -m`` records the name in ``__spec__``.
    """
    if module != "__main__":
        return module
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return None if spec is None else spec.name


async def _serve(app: WorkerMethods, options: WorkerOptions, worker: Worker) -> int:
    # Set signal handlers before waiting for the database. Without handlers, signals do not stop the first process of a
    # container.
    with _stopped_by_signals(worker):
        await worker.unless_stopped(_save_tasks_until_done(app))
        await worker.unless_stopped(warn_of_unknown(app.operations.store, options.queues))
        return int(await worker.run())


@contextmanager
def _stopped_by_signals(worker: Worker) -> Iterator[None]:
    """Shut the worker down at the first signal; end the process at once at the second.

    These are Python's signal handlers, not the loop's, because they also run while a job's handler blocks the loop.
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
        worker.note_stop()
        loop.call_soon_threadsafe(worker.stop)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    if signal.getsignal(WAKE) is signal.SIG_DFL:
        before[WAKE] = signal.signal(WAKE, lambda _number, _frame: None)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
