"""Filters: the conditions of lists and bulk actions. A job matches a filter if it meets all conditions."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple, TypedDict

import msgspec

from perdure.errors import InvalidOption
from perdure.model.job import Instant, State
from perdure.model.redact import HIDDEN
from perdure.model.visible_state import VISIBLE_STATES, VisibleState, visible_state
from perdure.request.options import KEY_BYTES, Named, task_name, text
from perdure.request.times import from_us, to_us

TEXT_BYTES = 1000


class Wanted(TypedDict, total=False):
    """The conditions as users pass them. None means no condition."""

    queue: str | None
    task: str | Named | None
    state: VisibleState | None
    tenant: str | None
    tag: str | None
    idempotency_key: str | None
    unique_key: str | None
    error_code: str | None
    text: str | None
    created_after: datetime | None
    created_before: datetime | None
    finished_after: datetime | None
    finished_before: datetime | None


class Filter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The conditions as operations take them. ``after`` times are inclusive, ``before`` times are exclusive."""

    queue: str | None = None
    task: str | None = None
    state: VisibleState | None = None
    tenant: str | None = None
    tag: str | None = None
    idempotency_key: str | None = None
    unique_key: str | None = None
    error_code: str | None = None
    text: str | None = None
    """A text to find in the encoded arguments. There are no wildcards."""
    created_after: Instant | None = None
    created_before: Instant | None = None
    finished_after: Instant | None = None
    finished_before: Instant | None = None

    def still_fits(self, job: Changeable) -> bool:
        """Whether a found job still matches once it is locked. Only the fields of ``Changeable`` can change."""
        finished = job.finished_at
        return (
            (self.state is None or self.state == job.visible_state)
            and self.error_code in (None, job.error_code)
            and (self.finished_after is None or (finished is not None and finished >= self.finished_after))
            and (self.finished_before is None or (finished is not None and finished < self.finished_before))
        )

    def as_dict(self) -> dict[str, str]:
        """The conditions that are set, for people to read. ``text`` is hidden: it may come from a redacted argument."""
        asked = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        if self.text is not None:
            asked["text"] = HIDDEN
        return {
            name: from_us(value).isoformat() if isinstance(value, int) else value
            for name, value in asked.items()
        }


EVERY = Filter()
"""The filter that matches every job."""


class Changeable(NamedTuple):
    """The fields that a filter tests and that can change after a job was found and before it is locked."""

    state: State
    due: bool
    held: str | None
    error_kind: str | None
    error_code: str | None
    finished_at: Instant | None

    @property
    def visible_state(self) -> VisibleState:
        return visible_state(self.state, held=self.held, due=self.due, error_kind=self.error_kind)


def checked_filter(wanted: Wanted) -> Filter:
    """Validate the conditions. Raises InvalidOption."""
    for unknown in wanted.keys() - Wanted.__annotations__.keys():
        raise InvalidOption(f"{unknown} is not a condition: use {', '.join(Wanted.__annotations__)}.")
    state, task = wanted.get("state"), wanted.get("task")
    if state is not None and state not in VISIBLE_STATES:
        raise InvalidOption(f"state must be one of {', '.join(VISIBLE_STATES)}.")
    filter = Filter(
        queue=_text("queue", wanted.get("queue")),
        task=None if task is None else task_name(task),
        state=state,
        tenant=_text("tenant", wanted.get("tenant")),
        tag=_text("tag", wanted.get("tag")),
        idempotency_key=_text("idempotency_key", wanted.get("idempotency_key"), KEY_BYTES),
        unique_key=_text("unique_key", wanted.get("unique_key"), KEY_BYTES),
        error_code=_text("error_code", wanted.get("error_code")),
        text=_text("text", wanted.get("text"), TEXT_BYTES),
        created_after=_to_us("created_after", wanted.get("created_after")),
        created_before=_to_us("created_before", wanted.get("created_before")),
        finished_after=_to_us("finished_after", wanted.get("finished_after")),
        finished_before=_to_us("finished_before", wanted.get("finished_before")),
    )
    _refuse_empty_window("created", filter.created_after, filter.created_before)
    _refuse_empty_window("finished", filter.finished_after, filter.finished_before)
    return filter


def _text(name: str, value: str | None, most: int | None = None) -> str | None:
    if value is None:
        return None
    return text(name, value) if most is None else text(name, value, most)


def _to_us(name: str, value: datetime | None) -> Instant | None:
    return None if value is None else to_us(name, value)


def _refuse_empty_window(name: str, after: Instant | None, before: Instant | None) -> None:
    if after is not None and before is not None and after >= before:
        raise InvalidOption(f"{name}_after must be earlier than {name}_before: no job is in between.")
