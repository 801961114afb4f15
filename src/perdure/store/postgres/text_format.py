"""Convert rows from PostgreSQL's text format to Python values, for drivers that support no other format."""

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
    """Microseconds since the epoch. Drivers return infinite times as the first and last datetime."""
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
"""Readers by the OID of a type."""
