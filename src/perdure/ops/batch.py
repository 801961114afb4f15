"""Many rows as one parameter: a JSON array or object, which both databases expand into rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

T = TypeVar("T")

CHUNK = 1000
"""Rows per statement. More rows need more memory and gain nothing: measured throughput is flat from 500 rows on."""

CHARACTERS = 16 << 20
"""Payload characters per statement.

A jsonb value may have 256 MB, but a much smaller statement already takes too long.
"""

_encode = msgspec.json.Encoder().encode


def rows_of(values: Sequence[object] | Mapping[str, object]) -> str:
    return _encode(values).decode()


def chunks(values: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(values), CHUNK):
        yield values[start : start + CHUNK]


def portions(values: Sequence[T], sizes: Sequence[int]) -> Iterator[Sequence[T]]:
    """Split into chunks of at most CHUNK values and CHARACTERS characters.

    A value of more than CHARACTERS characters gets its own chunk.
    """
    if sum(sizes) <= CHARACTERS:
        yield from chunks(values)
        return
    start = size = 0
    for end, own in enumerate(sizes):
        if end - start == CHUNK or (end > start and size + own > CHARACTERS):
            yield values[start:end]
            start, size = end, 0
        size += own
    yield values[start:]


def portions_by_key(rows: Mapping[str, T], sizes: Sequence[int]) -> Iterator[Mapping[str, T]]:
    if len(rows) <= CHUNK and sum(sizes) <= CHARACTERS:
        yield rows
    else:
        yield from map(dict, portions([*rows.items()], sizes))
