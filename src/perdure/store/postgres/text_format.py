"""Rows of PostgreSQL from their text format, for drivers that read no other: the values that stores promise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from psycopg import postgres

from perdure.model.time_text import FIRST, LAST
from perdure.store.postgres.adapt import LOADERS

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def microseconds(instant: datetime) -> int:
    """Since the epoch. A driver's infinite instants are the first and the last that a datetime can hold."""
    aware = instant if instant.tzinfo else instant.replace(tzinfo=UTC)
    return (aware - _EPOCH) // _MICROSECOND


def _instant(text: str) -> int:
    if text == "-infinity" or text.endswith(" BC"):
        return FIRST
    if text == "infinity" or text.index("-") > 4:
        return LAST
    return microseconds(datetime.fromisoformat(text))


_OTHER_THAN_TEXT: Mapping[str, Callable[[str], Any]] = {
    "bool": "t".__eq__,
    "int2": int,
    "int4": int,
    "int8": int,
    "oid": int,
    "float8": float,
    "numeric": Decimal,
    "timestamptz": _instant,
}

READERS: Mapping[int, Callable[[str], Any]] = {
    postgres.types[name].oid: _OTHER_THAN_TEXT.get(name, str) for name in LOADERS
}
"""By the number of a type."""
