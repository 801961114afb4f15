"""Waking others without writing."""

from __future__ import annotations

from perdure.ops.op import Op, announce, operation


@operation("write")
def notify(topics: frozenset[str]) -> Op[None]:
    """Announce topics and write nothing; other processes on SQLite hear what is written, so they hear nothing."""
    yield from announce(topics)
