"""A group commit and nothing else: callers leave what they have and wait, one thread writes all of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Generic, TypeVar

T = TypeVar("T")


class GroupCommit(Generic[T]):
    def __init__(self, write: Callable[[Sequence[T]], None]) -> None:
        self._write = write
        self._line: SimpleQueue[tuple[T, Lock] | None] = SimpleQueue()
        Thread(target=self._run, daemon=True).start()

    def join(self, item: T) -> None:
        """Leave an item and wait until it is written."""
        gate = Lock()
        gate.acquire()
        self._line.put((item, gate))
        gate.acquire()

    def close(self) -> None:
        self._line.put(None)

    def _run(self) -> None:
        while (first := self._line.get()) is not None:
            group = [first, *self._waiting()]
            self._write([item for item, _ in group])
            for _, gate in group:
                gate.release()

    def _waiting(self) -> list[tuple[T, Lock]]:
        group: list[tuple[T, Lock]] = []
        try:
            while one := self._line.get_nowait():
                group.append(one)
        except Empty:
            return group
        self._line.put(None)  # the end was met: meet it again
        return group
