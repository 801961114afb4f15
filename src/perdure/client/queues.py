"""A queue's live settings, as callers see and change them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypedDict

from perdure.errors import InvalidOption
from perdure.model.backoff import Backoff, as_backoff
from perdure.model.job import SECOND
from perdure.model.pause import Pause
from perdure.model.queue_settings import NAMES, Settings
from perdure.ops.queues import Queue
from perdure.request.options import INTEGER, unknown_option, whole
from perdure.request.times import duration_us, from_us


class QueuePause(NamedTuple):
    """The pause of a queue. ``at`` is None if the pause began before migration 0007.

    ``resume_at``: when the pause ends by itself; None if somebody must end it.
    """

    at: datetime | None
    by: str | None
    reason: str | None
    resume_at: datetime | None = None


class QueueEdit(NamedTuple):
    """A setting that an operator has set, and the code's declaration of it.

    None means "not set". A timeout is in seconds.
    """

    setting: str
    value: float | Backoff | None
    declared: float | Backoff | None

    def __str__(self) -> str:
        if self.declared is None:
            return _setting(self.setting, self.value)
        return f"{_setting(self.setting, self.value)}, code says {show_value(self.setting, self.declared)}"


class QueueSettings(NamedTuple):
    """The live settings of a queue. ``throttles``: the exponent of its cool-downs, see ``model/cool_down.py``.

    ``timeout`` is in seconds. ``declared``: the settings that the code declares, by name; None if the code does not
    declare the queue. ``edits``: the settings that operators have set; they override the declared ones.
    """

    name: str
    paused: bool
    cool_until: datetime | None
    throttles: int
    backoff: Backoff | None
    pause: QueuePause | None
    timeout: float | None
    concurrency: int | None
    declared: dict[str, Any] | None
    edits: list[QueueEdit]


class QueueChanges(TypedDict, total=False):
    """The settings that ``set_queue`` changes. An omitted setting stays; None removes it."""

    backoff: float | Backoff | None
    timeout: float | timedelta | None
    concurrency: int | None


def show_queue(queue: Queue) -> QueueSettings:
    return QueueSettings(
        queue.name,
        queue.paused,
        None if queue.cool_until is None else from_us(queue.cool_until),
        queue.throttles,
        queue.backoff,
        show_pause(queue.pause),
        None if queue.timeout is None else queue.timeout / SECOND,
        queue.concurrency,
        None if queue.declared is None else _shown(queue.declared),
        show_edits(queue),
    )


def show_edits(queue: Queue) -> list[QueueEdit]:
    now, declared = _shown(queue.settings), _shown(queue.declared or Settings())
    return [QueueEdit(name, now.get(name), declared.get(name)) for name in NAMES if name in queue.edited]


def show_pause(pause: Pause | None) -> QueuePause | None:
    if pause is None:
        return None
    at, end = (None if time is None else from_us(time) for time in (pause.at, pause.resume_at))
    return QueuePause(at, pause.by, pause.reason, end)


def checked_changes(asked: QueueChanges) -> dict[str, object]:
    """The settings as operations take them; InvalidOption if a setting is wrong."""
    if unknown := unknown_option("queue", asked, QueueChanges.__annotations__):
        raise InvalidOption(unknown)
    if not asked:
        raise InvalidOption("Give a setting, such as backoff: there is nothing to set.")
    return {name: value for name, value in _checked(asked).items() if name in asked}


def checked_settings(asked: QueueChanges) -> Settings:
    """The settings that ``app.queue`` declares; InvalidOption if a setting is wrong."""
    if unknown := unknown_option("queue", asked, QueueChanges.__annotations__):
        raise InvalidOption(unknown)
    return Settings(**_checked(asked))


def _checked(asked: QueueChanges) -> dict[str, Any]:
    backoff, timeout = asked.get("backoff"), asked.get("timeout")
    return {
        "backoff": None if backoff is None else as_backoff(backoff),
        "timeout": None if timeout is None else duration_us("timeout", timeout, least=1),
        "concurrency": whole("concurrency", asked.get("concurrency"), 1, INTEGER),
    }


def _shown(settings: Settings) -> dict[str, Any]:
    """The values of the settings that are set, by name, with a timeout in seconds."""
    return {
        name: value / SECOND if name == "timeout" else value
        for name, value in settings.only(NAMES).items()
        if value is not None
    }


def _setting(name: str, value: float | Backoff | None) -> str:
    return f"no {name}" if value is None else f"{name} {show_value(name, value)}"


def show_value(name: str, value: float | Backoff) -> str:
    """The value of a setting, for people."""
    if isinstance(value, Backoff):
        codes = f" and {len(value.codes)} codes" if value.codes else ""
        return f"{value.base:g} s to {value.cap:g} s{codes}"
    return f"{value:g} s" if name == "timeout" else f"{value:g}"
