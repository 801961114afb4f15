"""Fresh processes that inherit nothing and may be killed at any moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Barrier
from typing import Any

_spawn = get_context("spawn")

PATIENCE = 60.0


class Processes:
    """Those that run."""

    def __init__(self) -> None:
        self.running: list[SpawnProcess] = []

    def start(self, role: Callable[..., None], *args: Any) -> None:
        process = _spawn.Process(target=role, args=args, daemon=True)
        process.start()
        self.running.append(process)

    def kill(self, process: SpawnProcess) -> None:
        """With SIGKILL, which nobody can catch."""
        process.kill()
        process.join(PATIENCE)
        self.running.remove(process)

    def join(self) -> None:
        """Wait until all have done their work."""
        for process in self.running:
            process.join(PATIENCE)
        assert [process.exitcode for process in self.running] == [0] * len(self.running)


@contextmanager
def spawning() -> Iterator[Processes]:
    """None is left behind."""
    started = Processes()
    try:
        yield started
    finally:
        for process in list(started.running):
            started.kill(process)


def starting_line(n: int) -> Barrier:
    """Where n processes wait for each other."""
    return _spawn.Barrier(n, timeout=PATIENCE)
