"""Announce topics without writing."""

from __future__ import annotations

from perdure.ops.op import Op, announce, operation


@operation("write")
def notify(topics: frozenset[str]) -> Op[None]:
    """Announce topics and write nothing.

    On SQLite only this process notices, because other processes notice only writes.
    """
    yield from announce(topics)
