"""What running handlers say is gathered and written once a second, all of it at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

from perdure import failpoints
from perdure.errors import Unavailable
from perdure.ops.report import Said
from perdure.worker.attempt import Attempt
from perdure.worker.deadlines import Deadlines
from perdure.worker.health import Health
from perdure.worker.ledger import Ledger

TICK = 1.0

_log = logging.getLogger("perdure.worker")


class Reports:
    """``attempts`` is what the worker runs, whatever that is at the time."""

    def __init__(
        self, attempts: Collection[Attempt], ledger: Ledger, health: Health, deadlines: Deadlines
    ) -> None:
        self._attempts = attempts
        self._ledger = ledger
        self._health = health
        self._deadlines = deadlines
        self._spoken = False

    def spoken(self) -> None:
        """Some handler said something. From any thread."""
        self._spoken = True

    async def run(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            self._deadlines.look_ahead(self._attempts)
            if self._spoken:
                self._spoken = False
                await self.write([attempt for attempt in self._attempts if not attempt.ended])

    async def write(self, attempts: Collection[Attempt]) -> None:
        told = [(attempt, said) for attempt in attempts if (said := attempt.context.take()) is not None]
        if not told:
            return
        if failpoints.armed:
            failpoints.reach("before_report")
        try:
            heard = await self._ledger.areport([said for _, said in told])
        except Unavailable as error:
            for attempt, said in told:
                attempt.context.put_back(said)
            self._spoken = True
            await asyncio.sleep(self._health.failed(error))
            return
        for (attempt, said), answer in zip(told, heard, strict=True):
            self._answer(attempt, said, answer)

    def _answer(self, attempt: Attempt, said: Said, answer: str) -> None:
        match answer:
            case "lease lost":
                attempt.stop("lost")
            case "cancel requested":
                attempt.stop("cancel")
            case "invalid progress":
                _log.warning(
                    "Job %s said that %s of %s is done; that was dropped",
                    attempt.job.id,
                    said.report.done,
                    said.report.total,
                )
