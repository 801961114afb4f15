"""The output of ``--json``: one document, with fields named like the database's columns and times in ISO 8601, UTC."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from perdure.cli.failures import Misuse
from perdure.cli.output import exact, printable

if TYPE_CHECKING:
    from perdure.client.bulk import Act
    from perdure.client.queues import QueuePause, QueueSettings
    from perdure.client.stats import QueueStats, RecentStats, Stats
    from perdure.client.timeline import Entry
    from perdure.client.views import AttemptView, WorkerRow, WorkflowRow
    from perdure.client.workflow_handle import Placed
    from perdure.model.job import JobRow
    from perdure.model.latency import Latency

as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")

_HEAVY = frozenset(("payload", "checkpoint", "result", "error_trace"))
_JSON = frozenset(("payload", "checkpoint", "result", "tasks", "queues"))
_SPANS = frozenset(("timeout", "lease", "delay"))


def print_json(document: object) -> None:
    """Print a document as JSON in ASCII, which is safe in any encoding and on any terminal."""
    import json

    exact(json.dumps(document, indent=2))


def print_sql(text: str) -> None:
    """Print SQL unchanged, for psql. Raise Misuse if a character is unprintable: replacing it would change a name."""
    if printable(text) != text:
        raise Misuse("A name contains characters that cannot be printed: use --json.")
    exact(text, end="")


def job_document(row: JobRow, *, whole: bool = True) -> dict[str, Any]:
    """A job as a document. Unless ``whole``, its large fields are left out."""
    names = [name for name in row.__struct_fields__ if whole or name not in _HEAVY]
    return _document({name: getattr(row, name) for name in names})


def attempt_document(attempt: AttemptView) -> dict[str, Any]:
    return _document(attempt._asdict())


def workflow_document(row: WorkflowRow) -> dict[str, Any]:
    return _document(row._asdict())


def step_document(step: Placed) -> dict[str, Any]:
    shape = step.shape
    parents = {"after": [*shape.after], "after_done": [*shape.after_done], "waits_for": step.waits_for}
    return {**_document(step.row._asdict()), "gate": shape.gate, **parents}


def act_document(act: Act) -> dict[str, Any]:
    return {**act._asdict(), "at": iso(act.at)}


def worker_document(row: WorkerRow, now: int) -> dict[str, Any]:
    from perdure.request.times import from_us

    silence = row.silence(now)
    return {
        **_document(row._asdict()),
        "live": row.expires_at > now,
        "silent_since": None if silence is None else iso(from_us(silence.since)),
    }


def entry_document(entry: Entry) -> dict[str, Any]:
    return {**entry._asdict(), "at": iso(entry.at)}


def queue_document(name: str, queue: QueueStats, stats: Stats) -> dict[str, Any]:
    return {
        "name": name,
        "counts": queue.counts,
        "held": queue.held,
        "lag": queue.lag,
        "oldest_ready": iso(queue.oldest_ready),
        "paused": queue.paused,
        "pause": pause_document(queue.pause),
        "cool_until": iso(queue.cool_until),
        "settings": None if queue.settings is None else settings_document(queue.settings),
        "unserved": [
            {"task": lost.task, "ready": lost.ready, "lacks": lost.lacks}
            for lost in stats.unserved
            if lost.queue == name
        ],
    }


def pause_document(pause: QueuePause | None) -> dict[str, Any] | None:
    if pause is None:
        return None
    return {**pause._asdict(), "at": iso(pause.at), "resume_at": iso(pause.resume_at)}


def settings_document(settings: QueueSettings) -> dict[str, Any]:
    """The settings in effect, the settings that the code declares, and the settings that an operator has set."""
    from msgspec import to_builtins

    values = {name: getattr(settings, name) for name in ("backoff", "timeout", "concurrency")}
    edited = [edit.setting for edit in settings.edits]
    document: dict[str, Any] = to_builtins({**values, "declared": settings.declared, "edited": edited})
    return document


def stats_document(stats: Stats) -> dict[str, Any]:
    from perdure.request.times import to_us

    facts = stats.connections
    return {
        "at": iso(stats.at),
        "database": stats.database._asdict(),
        "connections": {"open": facts.connections, "busy": facts.busy, "most": facts.most},
        "queues": [queue_document(name, queue, stats) for name, queue in stats.queues.items()],
        "workers": [worker_document(worker, to_us("at", stats.at)) for worker in stats.workers],
        "unserved": [lost._asdict() for lost in stats.unserved],
        "recent": None if stats.recent is None else _recent_document(stats.recent),
    }


def _recent_document(recent: RecentStats) -> dict[str, Any]:
    def each(latencies: Mapping[str, Latency]) -> list[dict[str, Any]]:
        return [
            {
                "name": name,
                **one._asdict(),
                "waited": one.waited and one.waited._asdict(),
                "ran": one.ran and one.ran._asdict(),
            }
            for name, one in latencies.items()
        ]

    return {
        "since": iso(recent.since),
        "looked_at": recent.looked_at,
        "whole": recent.whole,
        "queues": each(recent.queues),
        "tasks": each(recent.tasks),
    }


def iso(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _document(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _value(name, value) for name, value in fields.items()}


def _value(name: str, value: Any) -> Any:
    from perdure.model.job import SECOND, STORED_AS_GIVEN
    from perdure.model.json_text import shown_json
    from perdure.request.times import from_us

    if value is None:
        return None
    if name in _JSON or STORED_AS_GIVEN.get(name) == "json":
        return shown_json(value)
    if name in _SPANS:
        return value / SECOND
    return iso(from_us(value)) if name.endswith("_at") or name == "scheduled_for" else value
