"""Subscribers to events. They are called on the event loop or in separate threads, and no job waits for them."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections import deque
from collections.abc import Awaitable
from contextlib import suppress
from time import monotonic
from typing import Protocol, cast

from perdure.request.events import JobEvent, Listener

LIMIT = 10.0
"""Seconds that a call of a listener may take. Then an async call is cancelled, and a synchronous call is logged."""
MOST = 1_000
"""How many events may wait for one listener. Further events are dropped."""
CLOSE_WITHIN = 5.0
"""Seconds for listeners to take the last events of a worker that stops."""

_log = logging.getLogger("perdure.worker")


class Subscriber(Protocol):
    """A listener, and the events that wait for it. This is used in the event loop's thread."""

    def publish(self, event: JobEvent) -> None: ...

    async def close(self) -> None:
        """Deliver the last events."""
        ...


def subscriber_of(listener: Listener) -> Subscriber:
    # The listener may be an object with an async ``__call__``.
    on_loop = inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(type(listener).__call__)
    return LoopSubscriber(listener) if on_loop else ThreadSubscriber(listener)


class Lag:
    """Logs when a listener no longer keeps up with its events, and when it keeps up again."""

    def __init__(self, listener: Listener) -> None:
        self.name = getattr(listener, "__qualname__", type(listener).__qualname__)
        self._lags = False
        self._dropped = 0

    def drop(self) -> None:
        self.begin(f"{MOST} events wait for it, and new ones are dropped")
        self._dropped += 1

    def begin(self, why: str) -> None:
        if not self._lags:
            self._lags = True
            _log.warning("The listener %s lags: %s", self.name, why)

    def end(self) -> None:
        if self._lags:
            _log.warning("The listener %s keeps up again; it missed %d events", self.name, self._dropped)
            self._lags, self._dropped = False, 0


class LoopSubscriber:
    """Calls an async listener. The calls run concurrently, each with a time limit."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._lag = Lag(listener)
        self._calls: set[asyncio.Task[None]] = set()

    def publish(self, event: JobEvent) -> None:
        if len(self._calls) >= MOST:
            self._lag.drop()
            return
        call = asyncio.create_task(self._call(event))
        self._calls.add(call)
        call.add_done_callback(self._over)

    async def close(self) -> None:
        if self._calls:
            await asyncio.wait(self._calls, timeout=CLOSE_WITHIN)

    async def _call(self, event: JobEvent) -> None:
        try:
            async with asyncio.timeout(LIMIT):
                await cast(Awaitable[object], self._listener(event))
        except TimeoutError:
            _log.warning(
                "A listener to %r took more than %g s: it is no longer waited for", event.name, LIMIT
            )
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            # SystemExit and KeyboardInterrupt would end the event loop.
            _log_failure(event, error)

    def _over(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        if len(self._calls) <= MOST // 2:
            self._lag.end()


class ThreadSubscriber:
    """Calls a synchronous listener for one event after the other, in a thread that is started with the first event."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._lag = Lag(listener)
        self._loop = asyncio.get_running_loop()
        self._thread: threading.Thread | None = None
        self._news = threading.Condition()
        self._events: deque[JobEvent] = deque()
        self._busy_since: float | None = None
        self._closed = False
        self._over = asyncio.Event()
        self._watch: asyncio.TimerHandle | None = None

    def publish(self, event: JobEvent) -> None:
        if self._closed:
            return
        if len(self._events) >= MOST:
            self._lag.drop()
            return
        with self._news:
            self._events.append(event)
            self._news.notify()
        if self._thread is None:
            self._start()
        if self._watch is None:
            self._watch = self._loop.call_later(LIMIT, self._look)

    async def close(self) -> None:
        with self._news:
            self._closed = True
            self._news.notify()
        if self._watch is not None:
            self._watch.cancel()
        if self._thread is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_WITHIN):
                await self._over.wait()
        self._events.clear()  # otherwise more calls would follow a call that hangs now

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name=f"perdure-listener-{self._lag.name}", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            self._lag.begin("no thread can be started for it")  # the next event tries again
        else:
            self._thread = thread

    def _look(self) -> None:
        self._watch = None
        since = self._busy_since
        if since is None and not self._events:
            self._lag.end()
            return
        if since is not None and monotonic() - since >= LIMIT:
            self._lag.begin(f"a call of it takes more than {LIMIT:g} s, and events wait behind it")
        self._watch = self._loop.call_later(LIMIT, self._look)

    def _run(self) -> None:
        while (event := self._next()) is not None:
            try:
                self._listener(event)
            except BaseException as error:
                # This includes SystemExit: a listener must not end the thread, which serves further events.
                _log_failure(event, error)
        with suppress(RuntimeError):  # the loop is gone
            self._loop.call_soon_threadsafe(self._over.set)

    def _next(self) -> JobEvent | None:
        self._busy_since = None
        with self._news:
            self._news.wait_for(lambda: self._events or self._closed)
            if not self._events:
                return None
            self._busy_since = monotonic()
            return self._events.popleft()


def _log_failure(event: JobEvent, error: BaseException) -> None:
    _log.error("A listener to %r failed for job %s", event.name, event.job_id, exc_info=error)
