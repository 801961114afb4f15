"""Reads JSON from rows, which may be damaged or written by another program."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeVar, overload

import msgspec

from perdure.errors import InternalError

T = TypeVar("T")

UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)
"""The errors of decoding: the text is not JSON, is nested too deeply, or has an impossible number."""


@overload
def read_json(text: str | bytes) -> Any: ...
@overload
def read_json(text: str | bytes, kind: type[T]) -> T: ...
def read_json(text: str | bytes, kind: Any = Any) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except UNREADABLE:
        damaged = InternalError(
            "A row has JSON that cannot be read: perdure did not write it.", code="job.damaged"
        )
    raise damaged  # outside the except block, so that the original error, which quotes the row, is not its context


def read_config(text: str, task: str) -> dict[str, Any]:
    """Read the config that an operator has set for a task."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except UNREADABLE:
        damaged = InternalError(
            f"The config of the task {task} is not a JSON object: set it again, with app.set_task({task!r}, config=…).",
            code="task.damaged",
        )
    raise damaged


def shown_json(text: str) -> Any:
    """Decode JSON to show it to people. Text that is unreadable or nested too deeply is returned unchanged."""
    try:
        value = msgspec.json.decode(text)
    except UNREADABLE:
        return text
    return text if _is_deep(value) else value


# The deepest nesting that Python 3.11 and 3.12 can read. Newer versions read tens of thousands of levels. But printed
# JSON is indented by level: 5,000 levels take 10 kB in the database, and would print 50 MB.
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
