"""Jobs that were claimed and that no handler has begun: given back, they cost no attempt."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any

from perdure import diary
from perdure.model.job import Lease
from perdure.model.lifecycle import Outcome, Released
from perdure.worker.health import Health
from perdure.worker.ledger import Ledger


class Returns:
    """Belongs to the event loop's thread. ``errand`` has something done aside, ``due`` is called after each."""

    def __init__(
        self,
        ledger: Ledger,
        health: Health,
        *,
        errand: Callable[[Coroutine[Any, Any, None]], None],
        due: Callable[[], None],
    ) -> None:
        self._ledger = ledger
        self._health = health
        self._errand = errand
        self._due = due
        self._under_way = 0

    def __bool__(self) -> bool:
        """Whether some are on their way."""
        return self._under_way > 0

    def give_back(self, leases: Collection[Lease]) -> None:
        if diary.kept:
            for lease in leases:
                diary.note("released", [lease.job], token=lease.token)
        self._under_way += 1
        self._errand(self._release([Released(lease) for lease in sorted(leases)]))

    async def _release(self, outcomes: Sequence[Outcome]) -> None:
        try:
            await self._health.until_answered(lambda: self._ledger.afinish(outcomes))
        finally:
            self._under_way -= 1
        self._due()
