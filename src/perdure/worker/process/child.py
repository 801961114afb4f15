"""A child of a worker: a process that runs one job at a time until its worker lets it go or dies.

python -m perdure.worker.process.child <socket> <end of the kill-on-exit pipe> <pid of the worker>
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import copy_context
from importlib import import_module
from queue import SimpleQueue
from typing import Any, Literal, TypeAlias

import msgspec

from perdure.model.codec import storable_text
from perdure.model.lifecycle import LONG, Continued, Failed, Outcome, Succeeded
from perdure.request.context import current_context
from perdure.request.signals import Stopped
from perdure.worker.handler import Handler
from perdure.worker.loop_errors import log_redacted
from perdure.worker.operations import WorkerOperations
from perdure.worker.outcome import raised, returned
from perdure.worker.process.child_context import ChildContext, PendingRequests
from perdure.worker.process.kill_on_exit import die_with_worker
from perdure.worker.process.protocol import (
    Answer,
    ChildChannel,
    Ended,
    FromChild,
    Load,
    Loaded,
    LoadFailed,
    Run,
    Stop,
)

GRACE = 2.0
"""Seconds that the interpreter gets to end in order once the worker has let the child go."""

Phase: TypeAlias = Literal["loading", "idle", "calling", "awaiting", "reporting"]
"""What the main thread does. ``calling``: it runs a synchronous handler. ``awaiting``: it runs an async handler."""


def main() -> None:
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.set_inheritable(False)
    die_with_worker(int(sys.argv[2]), int(sys.argv[3]))
    # Ctrl-C is meant for the worker, which decides what happens to its jobs.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Child(ChildChannel(sock)).run()


class Child:
    """The child process.

    The main thread runs handlers, because signals and many libraries need the main thread. Another thread reads
    messages.
    """

    def __init__(self, channel: ChildChannel) -> None:
        self._channel = channel
        self._requests = PendingRequests(self._send)
        self._inbox: SimpleQueue[Load | Run | None] = SimpleQueue()
        self._phase: Phase = "loading"
        self._sending = False
        self._stop_asked = False
        self._stopped = False
        self._cancel: Callable[[], object] | None = None
        self._context: ChildContext | None = None
        self._operations: WorkerOperations | None = None
        self._handlers: Mapping[str, Handler] = {}

    def run(self) -> None:
        signal.signal(signal.SIGTERM, self._asked_to_stop)
        threading.Thread(target=self._read, name="perdure-child-reader", daemon=True).start()
        while (message := self._inbox.get()) is not None:
            if isinstance(message, Run):
                self._run(message)
            elif not self._load(message):
                return

    def _read(self) -> None:
        # This thread sends SIGTERM to the whole process group below. The main thread has to handle that signal.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        for message in self._channel.messages():
            if isinstance(message, Answer):
                self._requests.answered(message)
            elif isinstance(message, Stop):
                self._stop_asked = True
                _signal_group(signal.SIGTERM)
            else:
                self._inbox.put(message)
        # The worker has let this child go, or is dead.
        if self._phase in ("idle", "reporting"):
            self._inbox.put(None)
            time.sleep(GRACE)
        _end_group()

    def _load(self, load: Load) -> bool:
        try:
            app = load_app(load)
            self._operations, self._handlers = app.operations, app.handlers()
        except BaseException as error:
            traceback.print_exc()
            self._send(LoadFailed(storable_text(f"{type(error).__name__}: {error}", LONG)))
            return False
        if missing := [name for name in load.tasks if name not in self._handlers]:
            self._send(LoadFailed(f"the task {missing[0]} is unknown there"))
            return False
        self._phase = "idle"
        self._send(Loaded())
        return True

    def _run(self, run: Run) -> None:
        outcome: Outcome | None
        if (handler := self._handlers.get(run.job.task)) is None:
            outcome = Failed(run.job.lease, "error", message="The app of its process lacks this task.")
        else:
            outcome = self._handle(handler, run)
        self._phase = "reporting"
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        self._send(Ended.of(run.number, outcome, resident=_resident()))
        self._context = None
        self._phase = "idle"

    def _handle(self, handler: Handler, run: Run) -> Outcome | None:
        assert self._operations is not None, "an app that was loaded has one"
        context = ChildContext(run, self._handlers, operations=self._operations, requests=self._requests)
        self._context = context
        if handler.is_async:
            outcome = asyncio.run(self._live(handler, context))
            # A loop that closes removes the signal handlers that were added to it, so set ours again.
            signal.signal(signal.SIGTERM, self._asked_to_stop)
        else:
            outcome = copy_context().run(self._call, handler, context)
        if isinstance(outcome, Succeeded | Continued) and context.children:
            outcome = msgspec.structs.replace(outcome, children=context.children)
        if isinstance(outcome, Succeeded | Continued) and (appended := context.appended) is not None:
            outcome = msgspec.structs.replace(outcome, appended=appended)
        return outcome

    def _call(self, handler: Handler, context: ChildContext) -> Outcome | None:
        current_context.set(context)
        job = context.row
        value = None  # the value stays None if a middleware swallows an error
        try:
            self._phase = "calling"
            try:
                with handler.around(context):
                    value = handler.call(job.payload, context)
            finally:
                self._phase = "reporting"
        except Stopped:
            self._phase = "reporting"
            return None
        except BaseException as error:
            return raised(handler, job, error)
        return returned(handler, job.lease, value)

    async def _live(self, handler: Handler, context: ChildContext) -> Outcome | None:
        current_context.set(context)
        job = context.row
        log_redacted(asyncio.get_running_loop(), self._handlers.values())
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
        self._phase = "awaiting"
        value = None
        try:
            with handler.around(context):
                value = await handler.call(job.payload, context)
        except asyncio.CancelledError:
            return None
        except BaseException as error:
            return raised(handler, job, error)
        finally:
            self._phase = "reporting"  # the loop may be closed from here on
        return returned(handler, job.lease, value)

    def _asked_to_stop(self, number: int, _frame: object) -> None:
        """Handle SIGTERM.

        The signal is ignored unless the worker sent ``Stop``, because a supervisor may signal every process.
        """
        if not self._stop_asked or self._stopped:
            return
        if self._phase in ("loading", "idle"):
            os._exit(128 + number)
        if self._context is None or self._phase == "reporting":
            return
        self._context.cancel_requested = self._stopped = True
        if self._phase == "awaiting" and self._cancel is not None:
            self._cancel()
        # Do not raise while a message is being sent, because half a message is unreadable. ``_send`` raises afterwards.
        elif self._phase == "calling" and not self._sending:
            raise Stopped

    def _send(self, message: FromChild) -> None:
        if threading.current_thread() is not threading.main_thread():
            self._channel.send(message)
            return
        self._sending = True
        try:
            self._channel.send(message)
        finally:
            self._sending = False
        if self._stopped and self._phase == "calling":
            raise Stopped


def load_app(load: Load) -> Any:
    """Import the same app that the worker runs, with the same tasks and database."""
    sys.path[:] = load.path
    module, _, name = load.target.partition(":")
    app: Any = import_module(module)
    for part in name.split("."):
        app = getattr(app, part)
    for module in load.modules:
        import_module(module)
    if load.url is not None:
        app.use_database(url=load.url)
    return app


def _end_group() -> None:
    """End this process at once, and all processes that handlers started."""
    _signal_group(signal.SIGKILL)
    os._exit(1)


def _signal_group(number: signal.Signals) -> None:
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), number)


def _resident() -> int:
    """Bytes of resident memory of this process; 0 if unknown."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


if __name__ == "__main__":
    main()
