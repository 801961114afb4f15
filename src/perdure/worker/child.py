"""A child of a worker: a process that runs one job at a time until its worker lets it go or dies.

    python -m perdure.worker.child <socket> <pid of the worker>
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from importlib import import_module
from queue import SimpleQueue
from typing import Any, Literal, TypeAlias

from perdure.context import current_context
from perdure.model.lifecycle import Failed, Outcome
from perdure.worker.child_context import ChildContext, Desk
from perdure.worker.ending import raised, returned
from perdure.worker.handler import Handler
from perdure.worker.wire import Answer, Ended, FromChild, FromWorker, Line, Load, Loaded, Run, Unfit

GRACE = 2.0
"""Seconds that the interpreter gets to end in order once the worker has let it go."""

Phase: TypeAlias = Literal["loading", "idle", "handling", "telling"]


class Stopped(BaseException):
    """Raised in a plain handler at SIGTERM, so that it can clean up: an async one is cancelled."""


def main() -> None:
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.set_inheritable(False)
    _die_with(int(sys.argv[2]))
    # A Ctrl-C is for the worker, which decides what becomes of its jobs.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Child(Line(sock)).run()


class Child:
    """Its main thread runs handlers, for signals and many libraries want that one; another reads."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._desk = Desk(self._say)
        self._inbox: SimpleQueue[Load | Run | None] = SimpleQueue()
        self._phase: Phase = "loading"
        self._sending = False
        self._stopped = False
        self._app: Any = None
        self._handlers: Mapping[str, Handler] = {}

    def run(self) -> None:
        signal.signal(signal.SIGTERM, self._told_to_stop)
        threading.Thread(target=self._read, name="perdure-wire", daemon=True).start()
        while (message := self._inbox.get()) is not None:
            if isinstance(message, Load):
                self._load(message)
            else:
                self._run(message)

    def _read(self) -> None:
        for message in self._line.messages():
            if isinstance(message, Answer):
                self._desk.answered(message)
            else:
                self._inbox.put(message)
        # The worker let it go, or is dead.
        if self._phase == "idle":
            self._inbox.put(None)
            time.sleep(GRACE)
        _end_group()

    def _load(self, load: Load) -> None:
        try:
            self._app = load_app(load)
            self._handlers = self._app.handlers()
            missing = [name for name in load.tasks if name not in self._handlers]
        except BaseException as error:
            self._say(Unfit(f"{type(error).__name__}: {str(error)[:500]}"))
            return
        if missing:
            self._say(Unfit(f"{load.target} does not know the task {missing[0]} there"))
            return
        self._phase = "idle"
        self._say(Loaded())

    def _run(self, run: Run) -> None:
        context = ChildContext(run, self._app.ledger, self._desk)
        handler = self._handlers.get(run.job.task)
        if handler is None:
            outcome: Outcome | None = Failed(run.job.lease, "error", message="Its process lacks the task.")
        elif handler.is_async:
            outcome = asyncio.run(self._live(handler, context))
            # The loop took the signal away.
            signal.signal(signal.SIGTERM, self._told_to_stop)
        else:
            outcome = copy_context().run(self._call, handler, context)
        self._phase = "telling"
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        self._say(Ended.of(run.number, outcome, resident=_resident()))
        self._phase = "idle"

    def _call(self, handler: Handler, context: ChildContext) -> Outcome | None:
        current_context.set(context)
        lease = context.row.lease
        try:
            self._phase = "handling"
            try:
                value = handler.call(context.row.payload, context)
            finally:
                self._phase = "telling"
        except Stopped:
            self._phase = "telling"
            return None
        except BaseException as error:
            return raised(handler, lease, error)
        return returned(handler, lease, value)

    async def _live(self, handler: Handler, context: ChildContext) -> Outcome | None:
        current_context.set(context)
        lease = context.row.lease
        task = asyncio.current_task()
        assert task is not None
        stop = partial(_cancel, task, context)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
        # Not "handling": nothing is raised here out of turn.
        self._phase = "telling"
        try:
            value = await handler.call(context.row.payload, context)
        except asyncio.CancelledError:
            return None
        except BaseException as error:
            return raised(handler, lease, error)
        return returned(handler, lease, value)

    def _told_to_stop(self, number: int, _frame: object) -> None:
        match self._phase:
            case "loading" | "idle":
                os._exit(128 + number)
            case "handling":
                self._desk.stop()
                self._stopped = True
                # A message that was half sent could never be read.
                if not self._sending:
                    raise Stopped
            case "telling":
                pass

    def _say(self, message: FromChild) -> None:
        if threading.current_thread() is not threading.main_thread():
            self._line.send(message)
            return
        self._sending = True
        self._line.send(message)
        self._sending = False
        if self._stopped and self._phase == "handling":
            raise Stopped


def load_app(load: Load) -> Any:
    """The app as the worker knows it, found anew."""
    sys.path[:] = load.path
    module, _, name = load.target.partition(":")
    app: Any = import_module(module)
    for part in name.split("."):
        app = getattr(app, part)
    for module in load.modules:
        import_module(module)
    if load.url is not None:
        app._url = load.url
    return app


def _cancel(task: asyncio.Task[Any], context: ChildContext) -> None:
    context.cancel_requested = True
    task.cancel()


def _die_with(worker: int) -> None:
    """Linux kills this process when its worker dies, also while a handler holds the interpreter."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != worker:
        os._exit(1)


def _end_group() -> None:
    """At once, with everything that handlers started."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


def _resident() -> int:
    """Bytes of memory that this process holds; 0 where nobody knows."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


if __name__ == "__main__":
    main()
