"""The results that a worker holds in memory for its steps, and how many bytes they take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TypeAlias

from perdure.ops.results import ParentResult
from perdure.worker.attempt import Attempt

MOST_HELD = 64 << 20
"""The most bytes of results that all steps of a worker hold together.

The first results of each step, up to ``PAGE_BYTES``, do not count.
"""

Identity: TypeAlias = tuple[str, int, int]
"""Identifies one outcome of a step: the step's id, run and token. Another run has another result."""


class HeldResults:
    """Holds each result once, however many steps use it. This is used in the event loop's thread."""

    def __init__(self) -> None:
        self.bytes = 0
        self._held: dict[Identity, ParentResult] = {}
        self._users: dict[Identity, int] = {}
        self._used: dict[Attempt, list[Identity]] = {}
        self._arguments: dict[Attempt, int] = {}
        self._released = asyncio.Event()

    def find(self, parent: ParentResult) -> ParentResult:
        """The parent with its result, if that result is held."""
        return self._held.get(identity(parent), parent)

    async def wait_for_room(self, need: Callable[[], int]) -> None:
        """Wait until ``need()`` more bytes may be held. If they can never fit, wait until nothing is held."""
        while self.bytes and self.bytes + need() > MOST_HELD:
            self._released.clear()
            await self._released.wait()

    def hold_arguments(self, attempt: Attempt, size: int) -> None:
        """Count the bytes of arguments that contain results. Steps do not share arguments."""
        self._arguments[attempt] = size
        self.bytes += size

    def hold(self, attempt: Attempt, parents: Iterable[ParentResult]) -> list[ParentResult]:
        """Hold the results that were read for an attempt.

        Return the parents, each with the shared copy of its result.
        """
        used = self._used.setdefault(attempt, [])
        found = []
        for parent in parents:
            if parent.result is not None:
                name = identity(parent)
                if name not in self._held:
                    self._held[name], self._users[name] = parent, 0
                    self.bytes += parent.size or 0
                self._users[name] += 1
                used.append(name)
                parent = self._held[name]
            found.append(parent)
        return found

    def release_results(self, attempt: Attempt) -> None:
        for name in self._used.pop(attempt, ()):
            self._users[name] -= 1
            if not self._users[name]:
                del self._users[name]
                self.bytes -= self._held.pop(name).size or 0
        self._released.set()

    def release(self, attempt: Attempt) -> None:
        """Release all results and arguments that are held for an attempt that is over."""
        self.bytes -= self._arguments.pop(attempt, 0)
        self.release_results(attempt)


def identity(parent: ParentResult) -> Identity:
    return parent.id, parent.run, parent.token
