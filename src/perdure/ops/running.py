"""Read running jobs that are locked, and write their reports and events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from perdure.errors import InvalidOption
from perdure.model.backoff import DEFAULT_BACKOFF, Backoff, load_backoff
from perdure.model.codec import storable_text
from perdure.model.json_text import UNREADABLE
from perdure.model.lifecycle import LONG, SHORT, Report, Running
from perdure.ops.batch import rows_of
from perdure.ops.op import Query, Row

Record: TypeAlias = dict[str, str | int | None]


def read_running(row: Row) -> Running:
    """Read a row of ``lock_running`` or ``find_orphans``."""
    (
        id,
        token,
        queue,
        run,
        attempt,
        most,
        throttles,
        crashes,
        interruptions,
        cancel,
        done,
        total,
        backoff,
        max_crashes,
        stage,
        workflow,
    ) = row
    return Running(
        id,
        token,
        queue,
        run,
        attempt,
        most,
        throttles,
        crashes,
        interruptions,
        bool(cancel),
        done,
        total,
        read_policy(backoff),
        max_crashes,
        stage,
        workflow,
    )


def read_policy(text: str | None) -> Backoff:
    """Read a back-off policy. A damaged policy is replaced by the default, so that outcomes can still be recorded."""
    try:
        return load_backoff(text)
    except (*UNREADABLE, InvalidOption):
        return DEFAULT_BACKOFF


def report_row(job: Running, report: Report, pair: tuple[int | None, int | None]) -> Record:
    return {
        "id": job.id,
        "token": job.token,
        "stage": _kept(report.stage, SHORT),
        "done": pair[0],
        "total": pair[1],
        "message": _kept(report.message, LONG),
        "checkpoint": report.checkpoint,
    }


def event_row(job: Running, kind: str, **detail: str) -> Record:
    text = msgspec.json.encode(detail).decode() if detail else None
    return {"id": job.id, "run": job.run, "token": job.token, "kind": kind, "detail": text}


def stage_events(job: Running, report: Report) -> list[Record]:
    """The event of a change of stage. A report adds nothing else to the history."""
    stage = _kept(report.stage, SHORT)
    return [] if stage is None or stage == job.stage else [event_row(job, "stage", stage=stage)]


def write_reports(reports: Sequence[Record], events: Sequence[Record]) -> list[Query]:
    writes = [Query("save_reports", {"reports": rows_of(reports)})] if reports else []
    return writes + ([Query("record_events", {"events": rows_of(events)})] if events else [])


def _kept(text: str | None, limit: int) -> str | None:
    return None if text is None else storable_text(text, limit)
