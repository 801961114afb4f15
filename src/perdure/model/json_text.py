"""JSON out of a row. It is ours, and readable, unless somebody else wrote it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeVar, overload

import msgspec

from perdure.errors import InternalError

T = TypeVar("T")

UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)
"""What comes of reading what is no JSON, or is nested too deeply, or has a number that no number is."""


@overload
def read_json(text: str | bytes) -> Any: ...
@overload
def read_json(text: str | bytes, kind: type[T]) -> T: ...
def read_json(text: str | bytes, kind: Any = Any) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except UNREADABLE:
        damaged = InternalError(
            "A row has JSON that cannot be read: perdure has not written it.", code="job.damaged"
        )
    raise damaged  # here, where no error stands behind it that quotes the row


def read_config(text: str, task: str) -> dict[str, Any]:
    """What an operator has set for a task."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except UNREADABLE:
        damaged = InternalError(
            f"The config of the task {task} is not a JSON object: set it again, with app.set_task({task!r}, config=…).",
            code="task.damaged",
        )
    raise damaged


def shown_json(text: str) -> Any:
    """For people: what cannot be read, or is nested too deeply, is shown as it stands."""
    try:
        value = msgspec.json.decode(text)
    except UNREADABLE:
        return text
    return text if _is_deep(value) else value


# What Python 3.11 and 3.12 can read at all. Newer ones read tens of thousands of levels; indented, each line is as
# long as it is deep: 5,000 levels, 10 kB, are 50 MB on the terminal.
_DEEPEST: Final = 900


def _is_deep(value: object) -> bool:
    level = [value]
    for _ in range(_DEEPEST):
        if not level:
            return False
        level = [part for whole in level for part in _parts(whole)]
    return bool(level)


def _parts(value: object) -> Iterable[object]:
    match value:
        case dict():
            return value.values()
        case list():
            return value
    return ()
