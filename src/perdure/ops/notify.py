"""Announce topics without writing."""

from __future__ import annotations

from perdure.ops.op import Op, announce, operation


@operation("write")
def notify(topics: frozenset[str]) -> Op[None]:
    """Announce topics and write nothing. On SQLite other processes notice only writes, so they notice nothing."""
    yield from announce(topics)
