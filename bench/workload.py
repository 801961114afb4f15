"""The work both sides do: the same jobs, the same results, by perdure or by SQL written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from time import time_ns
from typing import NamedTuple, Protocol

TASK = "send"
QUEUE = "mail"
WORKER = "bench"
RESULT = '{"sent":true}'

MAX_ATTEMPTS = 8
TIMEOUT = 900_000_000
"""Microseconds: what ``@app.task`` fills in, and what the bare side therefore writes."""


class Mail(NamedTuple):
    """The arguments of one job."""

    to: str
    subject: str
    number: int


def mails(n: int) -> list[Mail]:
    return [Mail(f"user{number}@example.com", "Welcome aboard", number) for number in range(n)]


class Side(Protocol):
    """One way to do the work."""

    def enqueue(self, mail: Mail) -> None:
        """One job, on the disk when this returns. One caller at a time."""

    def enqueue_together(self, mail: Mail) -> None:
        """The same, from any number of threads at once."""

    def enqueue_many(self, mails: Sequence[Mail]) -> None:
        """Many jobs in one transaction."""

    def cycle(self, n: int) -> int:
        """In one transaction record success for what was claimed before and claim n more; return how many."""

    def tidy(self) -> None:
        """Between two measurements: remove what the one before left to be cleaned up."""

    def close(self) -> None: ...


class Ids:
    """UUIDv7 at the least cost: for one process and one thread, a counter where others have chance."""

    def __init__(self) -> None:
        self._made = 0

    def new(self, n: int) -> list[str]:
        start, self._made = self._made, self._made + n
        millisecond = f"{time_ns() // 1_000_000:012x}"
        prefix = f"{millisecond[:8]}-{millisecond[8:]}-7000-8000-"
        return [f"{prefix}{number:012x}" for number in range(start, start + n)]
