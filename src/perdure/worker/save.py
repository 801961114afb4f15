"""``ctx.save``: writes a report with a checkpoint at once, and waits for a database that is away."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from time import monotonic

import msgspec

from perdure.errors import PayloadTooLarge, StoreClosed
from perdure.model.codec import MAX_PAYLOAD, encode_plain
from perdure.model.lifecycle import Report
from perdure.ops.report import JobReport, ReportAnswer
from perdure.plan.plan import Plan, pause
from perdure.worker.database_errors import FORBIDDEN, OUT_OF_SERVICE
from perdure.worker.operations import WorkerOperations

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0

LONG_SAVE = 1.0
"""A save that takes more seconds than this counts as waiting for the database."""


class SaveCall:
    """The saves of one attempt. A save that fails because of an outage costs no attempt."""

    __slots__ = ("_began", "_operations")

    def __init__(self, operations: WorkerOperations) -> None:
        self._operations = operations
        self._began: float | None = None

    def was_waiting(self, at: float) -> bool:
        """Whether a save that is under way or was cancelled had waited for ``LONG_SAVE`` seconds at this time."""
        return self._began is not None and at - self._began > LONG_SAVE

    def write(self, report: JobReport, *, should_stop: Callable[[], bool]) -> Plan[ReportAnswer]:
        """Write a report. While the database is out of service, retry for the store's ``patience``."""
        self._began = monotonic()
        try:
            answer = yield from self._until_served(report, should_stop)
        # A cancellation is not caught: ``_began`` stays set, so that ``was_waiting`` can tell that the handler waited.
        except Exception:
            self._began = None
            raise
        self._began = None
        return answer

    def _until_served(self, report: JobReport, should_stop: Callable[[], bool]) -> Plan[ReportAnswer]:
        patience = self._operations.store.patience
        until = math.inf if patience is None else monotonic() + patience
        wait = FIRST_PAUSE
        while True:
            try:
                return (yield from self._write(report))
            except StoreClosed:
                raise
            except OUT_OF_SERVICE as error:
                if error.code == FORBIDDEN:
                    raise  # waiting would not grant the privilege
                if should_stop() or monotonic() + wait > until:
                    error.costs_attempt = False
                    raise
            yield from pause(wait * random.uniform(0.5, 1.0))
            wait = min(2 * wait, LONGEST_PAUSE)

    def _write(self, report: JobReport) -> Plan[ReportAnswer]:
        answer = yield from self._operations._save(report)
        if answer == "invalid progress":
            answer = yield from self._operations._save(without_progress(report))
        return answer


def encode_checkpoint(value: object) -> str:
    """Encode a checkpoint.

    Errors name the path of a bad value, as if the checkpoint were an argument named ``checkpoint``.
    """
    try:
        return encode_plain({"checkpoint": value})[len('{"checkpoint":') : -1]
    except PayloadTooLarge:
        raise PayloadTooLarge(f"the checkpoint takes more than {MAX_PAYLOAD} bytes of JSON") from None


def without_progress(report: JobReport) -> JobReport:
    """The report without its progress, because done and total were reported separately and contradict each other."""
    return report._replace(report=msgspec.structs.replace(report.report, done=None, total=None))


def merged(earlier: Report, later: Report) -> Report:
    """Both reports as one. Values that the later report omits are taken from the earlier report."""
    given = {name: value for name, value in msgspec.structs.asdict(later).items() if value is not None}
    return msgspec.structs.replace(earlier, **given)
