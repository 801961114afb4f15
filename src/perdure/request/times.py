"""Conversion of times and durations: users have datetimes and seconds, the database has microseconds."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

from perdure.errors import InvalidOption
from perdure.model.job import SECOND, Instant, Span
from perdure.model.time_text import bounded

LONGEST: Span = 36_525 * 86_400 * SECOND
"""The longest duration: a hundred years."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LATEST = datetime(2200, 1, 1, tzinfo=UTC)


def duration_us(name: str, value: float | timedelta, *, least: Span = 0) -> Span:
    """Seconds or a timedelta as microseconds."""
    if isinstance(value, timedelta):
        micros = value // _MICROSECOND
    elif isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf:
        micros = round(value * SECOND) if abs(value) < 1e12 else LONGEST + 1
    else:
        raise InvalidOption(f"{name} must be a finite number of seconds or a timedelta.")
    if not least <= micros <= LONGEST:
        raise InvalidOption(
            f"{name} must be {'more than' if least else 'at least'} 0 and at most a hundred years."
        )
    return micros


def to_us(name: str, value: datetime) -> Instant:
    """An aware datetime as microseconds since the epoch."""
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise InvalidOption(f"{name} must be a datetime with a time zone.")
    if not _EPOCH <= value < _LATEST:
        raise InvalidOption(f"{name} must lie between the years 1970 and 2200.")
    return (value - _EPOCH) // _MICROSECOND


def from_us(value: Instant) -> datetime:
    """Microseconds since the epoch as a datetime in UTC."""
    return _EPOCH + timedelta(microseconds=bounded(value))
