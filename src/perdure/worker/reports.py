"""Collects the reports of running handlers, and writes them together once a second."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence

from perdure.internal import failpoints
from perdure.ops.report import JobReport
from perdure.worker.attempt import Attempt
from perdure.worker.database_errors import OUT_OF_SERVICE
from perdure.worker.deadlines import Deadlines
from perdure.worker.health import Health
from perdure.worker.operations import WorkerOperations
from perdure.worker.save import without_progress

TICK = 1.0

_log = logging.getLogger("perdure.worker")


class Reports:
    """Writes the reports of running handlers. ``attempts`` is a live view of the worker's attempts."""

    def __init__(
        self,
        attempts: Collection[Attempt],
        operations: WorkerOperations,
        health: Health,
        deadlines: Deadlines,
    ) -> None:
        self._attempts = attempts
        self._operations = operations
        self._health = health
        self._deadlines = deadlines
        self._pending = False
        self._writing: asyncio.Task[None] | None = None
        self._under_way: set[Attempt] = set()
        self._waiting: list[Callable[[], None]] = []

    def note_pending(self) -> None:
        """Note that a handler has a new report. Called from any thread."""
        self._pending = True

    def when_written(self, attempt: Attempt, record: Callable[[Attempt], None]) -> None:
        """Call ``record`` once no report of the attempt is under way. A report after the outcome would be refused."""
        if attempt in self._under_way:
            self._waiting.append(lambda: record(attempt))
        else:
            record(attempt)

    async def run(self) -> None:
        try:
            while True:
                await asyncio.sleep(TICK)
                self._deadlines.look_ahead(self._attempts)
                self._write_in_background()
        finally:
            if self._writing is not None:
                self._writing.cancel()

    def _write_in_background(self) -> None:
        """Write reports in a task that nobody awaits, so that deadlines are checked even if the database is slow."""
        if self._writing is not None and self._writing.done():
            self._writing.result()
            self._writing = None
        if self._pending and self._writing is None:
            self._pending = False
            attempts = [attempt for attempt in self._attempts if not attempt.ended]
            self._writing = asyncio.create_task(self.write(attempts))

    async def write(self, attempts: Collection[Attempt]) -> None:
        # The log lines of an attempt that has ended are written with its outcome. Written here, they might arrive
        # after the outcome.
        reports = [
            (attempt, report)
            for attempt in attempts
            if not attempt.ended and (report := attempt.context.take()) is not None
        ]
        if not reports:
            return
        if failpoints.armed:
            failpoints.reach("before_report")
        self._under_way = {attempt for attempt, _ in reports}
        try:
            await self._send(reports)
        finally:
            self._under_way = set()
            waiting, self._waiting = self._waiting, []
            for record in waiting:
                record()

    async def _send(self, reports: Sequence[tuple[Attempt, JobReport]]) -> None:
        try:
            answers = await self._operations.areport([report for _, report in reports])
        except asyncio.CancelledError:
            put_back(reports)
            raise
        except OUT_OF_SERVICE as error:
            put_back(reports)
            self._pending = True
            await asyncio.sleep(self._health.failed(error))
            return
        for (attempt, report), answer in zip(reports, answers, strict=True):
            self._answer(attempt, report, answer)

    def _answer(self, attempt: Attempt, report: JobReport, answer: str) -> None:
        match answer:
            case "lease lost":
                warn_of_lost_lines(report)
                attempt.stop("lost")
            case "cancel requested":
                attempt.stop("cancel")
            case "invalid progress":
                attempt.context.put_back(without_progress(report))
                self._pending = True
                _log.warning(
                    "Job %s reported that %s of %s is done; that was dropped",
                    attempt.job.id,
                    report.report.done,
                    report.report.total,
                )


def put_back(reports: Sequence[tuple[Attempt, JobReport]]) -> None:
    """Put reports back, so that they are written again.

    They may have been written already, if only the answer was lost. But a log line that appears twice is better than a
    lost line.
    """
    for attempt, report in reports:
        attempt.context.put_back(report)


def warn_of_lost_lines(report: JobReport) -> None:
    """Warn that log lines are lost, because the lease of their job is over.

    The lease is over, for example, once the handler's own transaction has recorded its success.
    """
    if report.logs:
        _log.warning("%d lines of job %s are lost: its lease was over", len(report.logs), report.lease.job)
