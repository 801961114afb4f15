"""A queue's live settings, as callers see and change them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple, TypedDict

from perdure.errors import InvalidOption
from perdure.model.backoff import Backoff, as_backoff
from perdure.ops.queues import Queue
from perdure.request.options import unknown_option
from perdure.request.times import from_us


class QueueSettings(NamedTuple):
    """``throttles``: how often in a row its jobs were throttled, which makes its cool-downs longer."""

    name: str
    paused: bool
    cool_until: datetime | None
    throttles: int
    backoff: Backoff | None


class QueueChanges(TypedDict, total=False):
    """What ``set_queue`` changes. A setting that is left out stays as it is; None takes it away."""

    backoff: float | Backoff | None


def show_queue(queue: Queue) -> QueueSettings:
    settings: dict[str, Any] = queue._asdict()
    if queue.cool_until is not None:
        settings["cool_until"] = from_us(queue.cool_until)
    return QueueSettings(**settings)


def checked_changes(asked: QueueChanges) -> dict[str, object]:
    """Settings as operations take them, or a clear refusal."""
    if unknown := unknown_option("queue", asked, QueueChanges.__annotations__):
        raise InvalidOption(unknown)
    if not asked:
        raise InvalidOption("Give a setting, such as backoff: there is nothing to set.")
    changes: dict[str, object] = {**asked}
    if (backoff := asked.get("backoff")) is not None:
        changes["backoff"] = as_backoff(backoff)
    return changes
