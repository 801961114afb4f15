"""Whether two values are the same, also in type: the promise for arguments, in a second, simpler implementation."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec


def alike(sent: Any, arrived: Any) -> bool:
    if type(sent) is not type(arrived):
        return False
    match sent:
        case float():
            return repr(sent) == repr(arrived)
        case Decimal():
            return sent.as_tuple() == arrived.as_tuple()
        case datetime():
            return _since_year_1(sent) == _since_year_1(arrived)
        case dict():
            pairs = zip(sent.items(), arrived.items(), strict=False)
            return len(sent) == len(arrived) and all(alike([*one], [*other]) for one, other in pairs)
        case list() | tuple():
            return len(sent) == len(arrived) and all(map(alike, sent, arrived))
        case set() | frozenset():
            return sent == arrived and sorted(map(_kind, sent)) == sorted(map(_kind, arrived))
        case msgspec.Struct():
            return alike(msgspec.structs.astuple(sent), msgspec.structs.astuple(arrived))
    if dataclasses.is_dataclass(sent):
        names = [field.name for field in dataclasses.fields(sent)]
        return all(alike(getattr(sent, name), getattr(arrived, name)) for name in names)
    return bool(sent == arrived)


def _since_year_1(at: datetime) -> timedelta:
    """In UTC, which may be before it."""
    return at.replace(tzinfo=None) - datetime.min - (at.utcoffset() or timedelta(0))


def _kind(value: Any) -> str:
    return f"{type(value).__name__} {value!r}"
