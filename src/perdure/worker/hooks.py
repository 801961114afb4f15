"""Publishes job events to subscribers. Each subscriber is called separately, with a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from perdure.model.job import Claimed, JobRow
from perdure.request.events import EventName, JobEvent, Listener
from perdure.worker.attempt import Attempt
from perdure.worker.handler import Handler
from perdure.worker.subscribers import Subscriber, subscriber_of


class Hooks:
    """Publishes job events, in the event loop's thread.

    An event is published after the commit, so a listener cannot change the outcome.
    """

    def __init__(
        self, listeners: Mapping[EventName, Sequence[Listener]], handlers: Mapping[str, Handler]
    ) -> None:
        self._listeners = listeners
        self._handlers = handlers
        # The key is the listener's id, because not every listener is hashable. A subscriber keeps its listener alive.
        self._subscribers: dict[int, Subscriber] = {}

    def attempt(
        self, name: EventName, attempt: Attempt, *, seconds: float | None = None, **more: str | None
    ) -> None:
        """Publish an event about an attempt of this worker."""
        self._publish(name, attempt.job, worker=attempt.context.worker, seconds=seconds, **more)

    def row(self, name: EventName, job: JobRow) -> None:
        """Publish an event about a job that this worker did not run."""
        self._publish(name, job, kind=job.error_kind, code=job.error_code, message=job.error_message)

    def expired(self, job: JobRow) -> None:
        """Publish that a job was canceled because it was not started in time."""
        self._publish("canceled", job, message=job.reason)

    def wanted(self, name: EventName, task: str) -> bool:
        return name in self._listeners or (name == "failed" and self._on_failed(task) is not None)

    @property
    def quiet(self) -> bool:
        """Whether there is no listener at all."""
        return not self._listeners and all(handler.on_failed is None for handler in self._handlers.values())

    async def close(self) -> None:
        """Deliver the last events."""
        await asyncio.gather(*(subscriber.close() for subscriber in self._subscribers.values()))

    def _on_failed(self, task: str) -> Listener | None:
        handler = self._handlers.get(task)
        return None if handler is None else handler.on_failed

    def _publish(self, name: EventName, job: Claimed | JobRow, **more: Any) -> None:
        if not self.wanted(name, job.task):
            return
        event = JobEvent(
            name=name,
            job_id=job.id,
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
            self._subscriber(listener).publish(event)

    def _subscriber(self, listener: Listener) -> Subscriber:
        if (subscriber := self._subscribers.get(id(listener))) is None:
            subscriber = self._subscribers[id(listener)] = subscriber_of(listener)
        return subscriber
