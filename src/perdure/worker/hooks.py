"""Tells those who subscribed what happened: each apart from the others, and none for longer than a while."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from perdure.events import EventName, JobEvent, Listener
from perdure.model.job import Claimed, JobRow
from perdure.store.daemons import Daemons
from perdure.worker.attempt import Attempt
from perdure.worker.handler import Handler

LIMIT = 10.0
"""Seconds a listener may take."""
MOST = 10_000
"""Calls that may be under way; what happens beyond that is not told, and the log says so once."""

_log = logging.getLogger("perdure.worker")


class Hooks:
    """Belongs to the event loop's thread. What was told is the truth already: nothing a listener does changes it."""

    def __init__(
        self, listeners: Mapping[EventName, Sequence[Listener]], handlers: Mapping[str, Handler]
    ) -> None:
        self._listeners = listeners
        self._handlers = handlers
        self._threads = Daemons("perdure-listener", limit=4)
        self._calls: set[asyncio.Task[None]] = set()
        self._flooded = False

    def attempt(
        self, name: EventName, attempt: Attempt, *, seconds: float | None = None, **told: str | None
    ) -> None:
        """Something happened to an attempt of this worker."""
        self._tell(name, attempt.job, worker=attempt.context.worker, seconds=seconds, **told)

    def row(self, name: EventName, job: JobRow) -> None:
        """Something happened to a job that this worker did not run."""
        self._tell(name, job, kind=job.error_kind, code=job.error_code, message=job.error_message)

    def wanted(self, name: EventName, task: str) -> bool:
        return name in self._listeners or (name == "failed" and self._on_failed(task) is not None)

    @property
    def quiet(self) -> bool:
        """Whether nobody listens at all."""
        return not self._listeners and all(handler.on_failed is None for handler in self._handlers.values())

    async def close(self) -> None:
        """Let the last ones hear."""
        if self._calls:
            await asyncio.wait(self._calls, timeout=LIMIT)
        self._threads.stop(wait=False)

    def _on_failed(self, task: str) -> Listener | None:
        handler = self._handlers.get(task)
        return None if handler is None else handler.on_failed

    def _tell(self, name: EventName, job: Claimed | JobRow, **more: Any) -> None:
        if not self.wanted(name, job.task):
            return
        event = JobEvent(
            name=name,
            job=job.id,
            task=job.task,
            queue=job.queue,
            run=job.run,
            attempt=job.attempt,
            tenant=job.tenant,
            **more,
        )
        listeners = [*self._listeners.get(event.name, ())]
        if event.name == "failed" and (own := self._on_failed(event.task)) is not None:
            listeners.append(own)
        for listener in listeners:
            if len(self._calls) >= MOST:
                if not self._flooded:
                    _log.warning("Listeners are too slow: events are dropped")
                self._flooded = True
                continue
            self._flooded = False
            call = asyncio.create_task(self._call(listener, event))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    async def _call(self, listener: Listener, event: JobEvent) -> None:
        try:
            async with asyncio.timeout(LIMIT):
                if _is_async(listener):
                    await cast(Awaitable[object], listener(event))
                else:
                    await self._in_thread(listener, event)
        except TimeoutError:
            _log.warning(
                "A listener to %r took more than %g s: it is no longer waited for", event.name, LIMIT
            )
        except (Exception, SystemExit, KeyboardInterrupt):
            # The last two would end the event loop.
            _log.exception("A listener to %r failed for job %s", event.name, event.job)

    async def _in_thread(self, listener: Listener, event: JobEvent) -> None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[BaseException | None] = loop.create_future()

        def settle(error: BaseException | None) -> None:
            if not done.done():
                done.set_result(error)

        def run() -> None:
            error: BaseException | None = None
            try:
                listener(event)
            except BaseException as raised:
                error = raised
            with suppress(RuntimeError):  # the loop is gone
                loop.call_soon_threadsafe(settle, error)

        self._threads.submit(run)
        if (error := await done) is not None:
            _log.error("A listener to %r failed for job %s", event.name, event.job, exc_info=error)


def _is_async(listener: Listener) -> bool:
    """Also an object that is called like an async function."""
    return inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(type(listener).__call__)
