"""A queue's live settings, as callers see and change them."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple, TypedDict

from perdure.errors import InvalidOption
from perdure.model.backoff import Backoff, as_backoff
from perdure.model.pause import Pause
from perdure.ops.queues import Queue
from perdure.request.options import unknown_option
from perdure.request.times import from_us


class QueuePause(NamedTuple):
    """The pause of a queue. ``at`` is None if it began before migration 0007."""

    at: datetime | None
    by: str | None
    reason: str | None


class QueueSettings(NamedTuple):
    """The live settings of a queue. ``throttles``: the exponent of its cool-downs, which grows with each one."""

    name: str
    paused: bool
    cool_until: datetime | None
    throttles: int
    backoff: Backoff | None
    pause: QueuePause | None


class QueueChanges(TypedDict, total=False):
    """The settings that ``set_queue`` changes. An omitted setting stays; None removes it."""

    backoff: float | Backoff | None


def show_queue(queue: Queue) -> QueueSettings:
    return QueueSettings(
        queue.name,
        queue.paused,
        None if queue.cool_until is None else from_us(queue.cool_until),
        queue.throttles,
        queue.backoff,
        show_pause(queue.pause),
    )


def show_pause(pause: Pause | None) -> QueuePause | None:
    if pause is None:
        return None
    return QueuePause(None if pause.at is None else from_us(pause.at), pause.by, pause.reason)


def checked_changes(asked: QueueChanges) -> dict[str, object]:
    """The settings as operations take them; InvalidOption if one is wrong."""
    if unknown := unknown_option("queue", asked, QueueChanges.__annotations__):
        raise InvalidOption(unknown)
    if not asked:
        raise InvalidOption("Give a setting, such as backoff: there is nothing to set.")
    changes: dict[str, object] = {**asked}
    if (backoff := asked.get("backoff")) is not None:
        changes["backoff"] = as_backoff(backoff)
    return changes
