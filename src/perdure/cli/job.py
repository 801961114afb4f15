"""``perdure job`` and ``perdure explain``: everything about one job, and why it is not running."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from perdure.cli.documents import as_json, attempt_document, entry_document, job_document, print_json
from perdure.cli.jobs import shown_state
from perdure.cli.output import headline, indented, say, say_lines
from perdure.cli.tables import Column, facts, table
from perdure.cli.target import Target, pass_target, where
from perdure.model.time_text import distance, length, stamp

if TYPE_CHECKING:
    from perdure.client.timeline import Entry
    from perdure.client.views import AttemptView, JobView
    from perdure.model.explain import Explanation, Reason
    from perdure.model.job import JobRow

TIMELINE = (Column("WHEN"), Column("WHAT"), Column("RUN", rank=2, right=True), Column("DETAIL", least=20))
ATTEMPTS = (
    Column("RUN", right=True),
    Column("ATTEMPT", right=True),
    Column("OUTCOME"),
    Column("TOOK", rank=1, right=True),
    Column("WORKER", rank=3, least=8, keep_end=True),
    Column("CODE", rank=2, least=8),
    Column("MESSAGE", rank=4, least=16),
)


@click.command()
@click.argument("id")
@as_json
@where
@pass_target
def job(target: Target, id: str, as_json: bool) -> None:
    """Show everything about a job.

    Shows the job's timeline, attempts, error, arguments, progress, checkpoint, result and log. The first characters of
    its id are enough if no other job's id begins with them.

    \b
    Examples:
      perdure job 01990c5e-6f3a-7cc0-b7d2-3f1c8a2d9e10
      perdure job 01990c5e-6f3a-7cc0-b7d2-3f1c8a2d9e10 --json | jq .result
    """
    with target.app_with_tables() as app:
        view = app.views.job(app.views.whole_job_id(id), most=None)
    if as_json:
        print_json(_document(view))
    else:
        _show(view)


@click.command()
@click.argument("id")
@as_json
@where
@pass_target
def explain(target: Target, id: str, as_json: bool) -> None:
    """Say why a job is not running, in a sentence.

    \b
    Examples:
      perdure explain 01990c5e-6f3a-7cc0-b7d2-3f1c8a2d9e10
      perdure explain 01990c5e-6f3a-7cc0-b7d2-3f1c8a2d9e10 --json | jq -r .code
    """
    with target.app_with_tables() as app:
        why = app.explain_job(app.views.whole_job_id(id))
    if as_json:
        print_json(_explanation(why))
        return
    say(f"{why.sentence} {why.shell}")
    for reason in why.also:
        say(f"Also: {reason.sentence} {reason.shell}")


def _document(view: JobView) -> dict[str, Any]:
    return {
        **job_document(view.job),
        "explanation": _explanation(view.explanation),
        "history": [entry_document(entry) for entry in view.history],
        "attempts": [attempt_document(attempt) for attempt in view.attempts],
    }


def _explanation(why: Explanation) -> dict[str, Any]:
    return {**_reason(why), "also": [_reason(reason) for reason in why.also]}


def _reason(why: Explanation | Reason) -> dict[str, Any]:
    return {"code": why.code, "sentence": why.sentence, "advice": why.shell}


def _show(view: JobView) -> None:
    row, now = view.job, time.time_ns() // 1000
    facts(_summary(row, view.explanation, now))
    headline("Timeline")
    table(TIMELINE, [_entry(entry) for entry in view.history if entry.what != "log"])
    if view.attempts:
        headline("Attempts")
        table(ATTEMPTS, [_attempt(attempt) for attempt in view.attempts])
    if row.error_kind is not None:
        headline("Error" if row.state != "running" else "Error of the previous attempt")
        say_lines(indented(f"{row.error_kind} {row.error_code}: {row.error_message}"))
        if row.error_trace:
            say_lines(f"    {indented(row.error_trace.rstrip())}")
    values = (("Arguments", row.payload), ("Checkpoint", row.checkpoint), ("Result", row.result))
    for title, text in values:
        if text is not None:
            headline(title)
            say_lines(_pretty(text))
    if view.logs:
        headline("Log")
        for log in view.logs:
            say_lines(indented(f"{stamp(log.at)}  {log.level:7}  {log.message}"))


def _summary(row: JobRow, why: Explanation, now: int) -> list[tuple[str, str | None]]:
    from perdure.model.job import STORED_AS_GIVEN

    return [
        ("job", row.id),
        ("task", row.task),
        ("state", shown_state(row, now)),
        ("why", why.sentence),
        ("queue", row.queue),
        ("priority", str(row.priority)),
        ("attempt", f"{row.attempt} of {row.max_attempts}, run {row.run}"),
        ("progress", _progress(row)),
        ("created", _at(row.created_at, now)),
        ("run at", _at(row.run_at, now)),
        ("expires", _at(row.expires_at, now)),
        ("timeout", None if row.timeout is None else length(row.timeout / 1e6)),
        ("unique key", row.unique_key),
        *((name, getattr(row, name)) for name in STORED_AS_GIVEN),
        ("workflow", row.workflow_id),
        ("step", row.step_key),
        ("parent", row.parent_job),
        ("replay of", row.replay_of),
        ("throttles", str(row.throttles) if row.throttles else None),
        ("snoozes", str(row.snoozes) if row.snoozes else None),
        ("crashes", str(row.crashes) if row.crashes else None),
        ("interruptions", str(row.interruptions) if row.interruptions else None),
    ]


def _progress(row: JobRow) -> str | None:
    numbers = None
    if row.progress_done is not None:
        numbers = str(row.progress_done) + (f" of {row.progress_total}" if row.progress_total else "")
    said = [part for part in (row.stage, numbers, row.progress_message) if part]
    return ", ".join(said) or None


def _at(at: int | None, now: int) -> str | None:
    return None if at is None else f"{stamp(at)} ({distance(at, now)})"


def _entry(entry: Entry) -> list[str]:
    detail = ", ".join(f"{name} {value}" for name, value in entry.detail.items())
    return [f"{entry.at:%Y-%m-%d %H:%M:%S.%f}"[:-3], entry.what, str(entry.run or ""), detail]


def _attempt(one: AttemptView) -> list[str]:
    took = ""
    if one.started_at is not None and one.finished_at is not None:
        took = length((one.finished_at - one.started_at) / 1e6)
    return [
        *(str(one.run), str(one.attempt), one.kind, took),
        *(one.worker_name or one.worker or "", one.code or "", one.message or ""),
    ]


def _pretty(text: str) -> str:
    import json

    from perdure.model.json_text import shown_json

    return json.dumps(shown_json(text), indent=2, ensure_ascii=False)
