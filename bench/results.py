"""What the rounds of a contest gave: medians with their spread, and ratios of what stood side by side.

A machine's speed changes within minutes. So a ratio is taken within each round, and the median of those counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple


class Entry(NamedTuple):
    """One contestant at one workload."""

    workload: str
    contestant: str


class Summary(NamedTuple):
    value: float
    low: float
    high: float
    rounds: int

    @property
    def spread(self) -> list[float]:
        return [float(f"{self.low:.3g}"), float(f"{self.high:.3g}")]


def is_latency(workload: str) -> bool:
    """Less is better."""
    return workload.startswith(("idle", "loaded", "cold start"))


class Results:
    def __init__(self) -> None:
        self._values: dict[Entry, dict[int, float]] = {}

    def add(self, number: int, entry: Entry, value: float) -> None:
        """In the round of this number."""
        self._values.setdefault(entry, {})[number] = value

    def entries(self) -> list[Entry]:
        return list(self._values)

    def get(self, number: int, entry: Entry) -> float | None:
        return self._values.get(entry, {}).get(number)

    def summary(self, entry: Entry) -> Summary | None:
        return summarize(list(self._values.get(entry, {}).values()))

    def ratio(self, above: Sequence[Entry], below: Sequence[Entry]) -> Summary | None:
        """The best of the ones over the best of the others, within each round that has both."""
        rounds = sorted({number for values in self._values.values() for number in values})
        pairs = [(self._best(number, above), self._best(number, below)) for number in rounds]
        return summarize([one / other for one, other in pairs if one is not None and other])

    def _best(self, number: int, entries: Sequence[Entry]) -> float | None:
        found = [value for entry in entries if (value := self.get(number, entry)) is not None]
        if not found:
            return None
        return min(found) if is_latency(entries[0].workload) else max(found)


def summarize(values: Sequence[float]) -> Summary | None:
    if not values:
        return None
    return Summary(median(values), min(values), max(values), len(values))
