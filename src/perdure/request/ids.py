"""Ids of jobs: UUIDv7, growing within a process, so that jobs enqueued in one millisecond stay in order.

Made by the client, so that an enqueue whose commit was never answered can be run again. A wrong clock only reorders
ties.
"""

from __future__ import annotations

import os
import threading
import time
from random import SystemRandom, getrandbits
from uuid import UUID

_TAIL = 74
"""Random bits of a UUIDv7."""
_DIGITS = frozenset("0123456789abcdef")
_LAST_GROUP = (1 << 48) - 1
"""The last twelve digits."""

_system = SystemRandom()
_lock = threading.Lock()
_last = 0


def new_id() -> str:
    with _lock:
        value = _take(1)
    return _spell(value)


def new_ids(n: int) -> list[str]:
    """As many ids, one after the other."""
    with _lock:
        first = _take(n)
    start, rest = first & _LAST_GROUP, _spell(first)[:24]
    if start + n > _LAST_GROUP:
        return [_spell(first + i) for i in range(n)]
    # Only the last twelve digits differ.
    return [f"{rest}{last:012x}" for last in range(start, start + n)]


def id_range(prefix: str) -> tuple[str, str] | None:
    """The first and the last id that begin with these hexadecimal digits, with or without hyphens; None if they are
    none."""
    digits = prefix.replace("-", "").lower()
    if len(digits) > 32 or not _DIGITS.issuperset(digits):
        return None
    first, last = (f"{digits:{filler}<32}" for filler in "0f")
    return str(UUID(first)), str(UUID(last))


def _take(n: int) -> int:
    """The first of n numbers above all before."""
    global _last
    fresh = (time.time_ns() // 1_000_000) << _TAIL
    first = _last + 1 + getrandbits(24)
    if fresh > _last:
        # One bit is left free, so that a busy millisecond does not run into the next.
        first = fresh | _system.getrandbits(_TAIL - 1)
    _last = first + n - 1
    return first


def _spell(value: int) -> str:
    """The version, 7, stands between 60 bits and 62; the variant is the highest bit of the second half."""
    head, tail = f"{value >> 62:015x}", f"{value & (1 << 62) - 1 | 1 << 63:016x}"
    return f"{head[:8]}-{head[8:12]}-7{head[12:]}-{tail[:4]}-{tail[4:]}"


def _after_fork() -> None:
    """A child begins anew: it would otherwise make the ids its parent is about to make."""
    global _last, _lock
    _last, _lock = 0, threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
