"""The timeline of a job, merged from its row, its attempts, its events and its log."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from perdure.model.job import Instant
from perdure.model.json_text import shown_json
from perdure.model.time_text import stamp
from perdure.ops.browse import AttemptRow, EventRow, LogRow, Traces
from perdure.ops.worker import WorkerRow
from perdure.request.times import from_us

SAID = ("stage", "progress dropped", "log")


class Entry(NamedTuple):
    """One entry of a job's timeline."""

    at: datetime
    what: str
    run: int | None
    token: int
    detail: dict[str, Any]


def timeline(traces: Traces) -> list[Entry]:
    """Everything that happened, oldest first."""
    entries = [
        _entry(
            traces.job.created_at, "enqueued", 1, 0, queue=traces.job.queue, replay_of=traces.job.replay_of
        )
    ]
    for attempt in traces.attempts:
        entries += _attempt(attempt, traces.workers)
    entries += _current(traces)
    entries += map(_event, traces.events)
    entries += map(_log, traces.logs)
    # The sort is stable: entries with the same microsecond, token and rank keep the order above.
    return sorted(entries, key=lambda entry: (entry.at, entry.token, _rank(entry.what)))


def _rank(what: str) -> int:
    """The order within a microsecond.

    A handler's last reports have the same time as its end, but must come before the end.
    """
    return 0 if what == "started" else 1 if what in SAID else 2


def _name(worker: str | None, workers: Mapping[str, WorkerRow]) -> str | None:
    """The name of a worker; its id if the worker is no longer known."""
    known = workers.get(worker or "")
    return worker if known is None else known.name


def _silent_since(attempt: AttemptRow, workers: Mapping[str, WorkerRow]) -> str | None:
    """When the worker fell silent, if the attempt was taken over from a dead worker."""
    worker = workers.get(attempt.worker or "")
    if attempt.kind != "lost" or worker is None or attempt.finished_at < worker.expires_at:
        return None
    silence = worker.silence(attempt.finished_at)
    return None if silence is None else stamp(silence.since)


def _attempt(attempt: AttemptRow, workers: Mapping[str, WorkerRow]) -> list[Entry]:
    entries = []
    if attempt.started_at is not None:
        entries.append(
            _entry(
                attempt.started_at,
                "started",
                attempt.run,
                attempt.token,
                attempt=attempt.attempt,
                worker=_name(attempt.worker, workers),
            )
        )
    entries.append(
        _entry(
            attempt.finished_at,
            attempt.kind,
            attempt.run,
            attempt.token,
            attempt=attempt.attempt,
            code=attempt.code,
            message=attempt.message,
            silent_since=_silent_since(attempt, workers),
            delay=None if attempt.delay is None else attempt.delay / 1e6,
            decided_by=attempt.decided_by,
        )
    )
    return entries


def _current(traces: Traces) -> list[Entry]:
    """The entries from the job's row: the current or last attempt, and the job's end if no event records it."""
    job = traces.job
    entries = []
    error: dict[str, str | None] = {}
    if job.started_at is not None:
        error = {"code": job.error_code, "message": job.error_message}
        worker = _name(job.worker, traces.workers)
        entries.append(
            _entry(job.started_at, "started", job.run, job.token, attempt=job.attempt, worker=worker)
        )
    acted = any((event.kind, event.run) == (job.state, job.run) for event in traces.events)
    if job.finished_at is not None and not acted:
        entries.append(_entry(job.finished_at, job.state, job.run, job.token, **error, reason=job.reason))
    return entries


def _event(event: EventRow) -> Entry:
    detail = {} if event.detail is None else shown_json(event.detail)
    if not isinstance(detail, dict):
        detail = {"detail": detail}  # perdure did not write this event
    return Entry(from_us(event.at), event.kind, event.run, event.token, detail)


def _log(line: LogRow) -> Entry:
    return _entry(line.at, "log", None, line.token, level=line.level, message=line.message)


def _entry(at: Instant, what: str, run: int | None, token: int, **detail: object) -> Entry:
    return Entry(
        from_us(at), what, run, token, {name: value for name, value in detail.items() if value is not None}
    )
