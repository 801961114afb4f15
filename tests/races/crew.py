"""Processes that begin anew, with nothing inherited, and may be killed at any moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Barrier
from typing import Any

_spawn = get_context("spawn")

PATIENCE = 60.0


class WorkersNow:
    """Those who are at work."""

    def __init__(self) -> None:
        self.hands: list[SpawnProcess] = []

    def start(self, role: Callable[..., None], *args: Any) -> None:
        process = _spawn.Process(target=role, args=args, daemon=True)
        process.start()
        self.hands.append(process)

    def kill(self, hand: SpawnProcess) -> None:
        """With SIGKILL, which nobody can catch."""
        hand.kill()
        hand.join(PATIENCE)
        self.hands.remove(hand)

    def join(self) -> None:
        """Wait until all have done their work."""
        for hand in self.hands:
            hand.join(PATIENCE)
        assert [hand.exitcode for hand in self.hands] == [0] * len(self.hands)


@contextmanager
def crew() -> Iterator[WorkersNow]:
    """Nobody is left behind."""
    hired = WorkersNow()
    try:
        yield hired
    finally:
        for hand in list(hired.hands):
            hired.kill(hand)


def starting_line(n: int) -> Barrier:
    """Where n processes wait for each other."""
    return _spawn.Barrier(n, timeout=PATIENCE)
