"""JSON out of a row. It is ours, and readable, unless somebody else wrote it."""

from __future__ import annotations

from typing import Any, TypeVar, overload

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


def shown_json(text: str) -> Any:
    """For people: what cannot be read is shown as it stands."""
    try:
        return msgspec.json.decode(text)
    except UNREADABLE:
        return text
