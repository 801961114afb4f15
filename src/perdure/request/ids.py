"""Job ids: UUIDv7 that increase within a process, so jobs enqueued in the same millisecond stay in order.

The client makes the ids, so that it can repeat an enqueue whose reply was lost. A wrong clock only reorders jobs
with the same due time.
"""

from __future__ import annotations

import os
import threading
import time
from random import SystemRandom, getrandbits
from uuid import UUID

_TAIL = 74
"""The number of random bits in a UUIDv7."""
_DIGITS = frozenset("0123456789abcdef")
_LAST_GROUP = (1 << 48) - 1
"""A mask for the last twelve digits."""

_system = SystemRandom()
_lock = threading.Lock()
_last = 0


def new_id() -> str:
    with _lock:
        value = _take(1)
    return _spell(value)


def new_ids(n: int) -> list[str]:
    """``n`` consecutive ids."""
    with _lock:
        first = _take(n)
    start, rest = first & _LAST_GROUP, _spell(first)[:24]
    if start + n > _LAST_GROUP:
        return [_spell(first + i) for i in range(n)]
    # Only the last twelve digits differ.
    return [f"{rest}{last:012x}" for last in range(start, start + n)]


def id_range(prefix: str) -> tuple[str, str] | None:
    """The first and the last id that begin with these hexadecimal digits, with or without hyphens.

    None if the prefix is too long or has other characters.
    """
    digits = prefix.replace("-", "").lower()
    if len(digits) > 32 or not _DIGITS.issuperset(digits):
        return None
    first, last = (f"{digits:{filler}<32}" for filler in "0f")
    return str(UUID(first)), str(UUID(last))


def _take(n: int) -> int:
    """Reserve n consecutive numbers, greater than all earlier numbers; return the first."""
    global _last
    fresh = (time.time_ns() // 1_000_000) << _TAIL
    first = _last + 1 + getrandbits(24)
    if fresh > _last:
        # The highest random bit starts as 0, so that the ids of a busy millisecond do not overflow into the next.
        first = fresh | _system.getrandbits(_TAIL - 1)
    _last = first + n - 1
    return first


def _spell(value: int) -> str:
    """Format as a UUID: 48 bits of time, the version, 12 random bits, the variant, 62 random bits."""
    head, tail = f"{value >> 62:015x}", f"{value & (1 << 62) - 1 | 1 << 63:016x}"
    return f"{head[:8]}-{head[8:12]}-7{head[12:]}-{tail[:4]}-{tail[4:]}"


def _after_fork() -> None:
    """Reset the state in a forked child. Otherwise the child would make the same ids as its parent."""
    global _last, _lock
    _last, _lock = 0, threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
