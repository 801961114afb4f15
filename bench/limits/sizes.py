"""How much is measured."""

from __future__ import annotations

from typing import NamedTuple


class Sizes(NamedTuple):
    rounds: int = 7
    jobs: int = 10_000
    """Of a drain."""
    blocked: int = 100_000
    """Jobs of a key that has no free slot."""
    others: int = 20_000
    """Jobs behind them."""
    ready_queues: int = 1_000
    future_queues: int = 20_000
    future_priorities: int = 32_000

    def scaled(self, part: float) -> Sizes:
        """With a part of the jobs, to try the program."""
        return Sizes(self.rounds, *(max(10, int(n * part)) for n in self[1:]))
