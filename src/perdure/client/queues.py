"""A queue's live settings, as callers see them."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from perdure.model.backoff import Backoff
from perdure.ops.queues import Queue
from perdure.request.times import from_us


class QueueSettings(NamedTuple):
    """``throttles``: how often in a row its jobs were throttled, which makes its cool-downs longer."""

    name: str
    paused: bool
    cool_until: datetime | None
    throttles: int
    backoff: Backoff | None


def show_queue(queue: Queue) -> QueueSettings:
    cool_until = None if queue.cool_until is None else from_us(queue.cool_until)
    return QueueSettings(queue.name, queue.paused, cool_until, queue.throttles, queue.backoff)
