"""Gives back claimed jobs whose handlers have not begun. This costs the jobs no attempt."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any

from perdure.internal import journal
from perdure.model.job import Lease
from perdure.model.lifecycle import Outcome, Released
from perdure.worker.health import Health
from perdure.worker.operations import WorkerOperations


class ClaimReleaser:
    """Gives claims back, in the event loop's thread.

    ``background`` starts an asyncio task. ``due`` is called after each release, because jobs are due again.
    """

    def __init__(
        self,
        operations: WorkerOperations,
        health: Health,
        background: Callable[[Coroutine[Any, Any, None]], None],
        *,
        due: Callable[[], None],
    ) -> None:
        self._operations = operations
        self._health = health
        self._background = background
        self._due = due
        self._under_way = 0

    def __bool__(self) -> bool:
        """Whether releases are under way."""
        return self._under_way > 0

    def give_back(self, leases: Collection[Lease]) -> None:
        if journal.enabled:
            for lease in leases:
                journal.note("released", [lease.job], token=lease.token)
        self._under_way += 1
        self._background(self._release([Released(lease) for lease in sorted(leases)]))

    async def _release(self, outcomes: Sequence[Outcome]) -> None:
        try:
            await self._health.until_answered(lambda: self._operations.afinish(outcomes))
        finally:
            self._under_way -= 1
        self._due()
