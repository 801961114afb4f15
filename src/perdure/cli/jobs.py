"""``perdure jobs``: list or count jobs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

import click

from perdure.cli.conditions import conditions
from perdure.cli.documents import as_json, job_document, print_json
from perdure.cli.failures import Misuse
from perdure.cli.output import number, say
from perdure.cli.suggest import did_you_mean
from perdure.cli.tables import Column, table
from perdure.cli.target import Target, pass_target, where
from perdure.model.time_text import distance
from perdure.model.visible_state import visible_state

if TYPE_CHECKING:
    from perdure.app import App
    from perdure.client.views import By
    from perdure.model.job import JobRow

COLUMNS = (
    Column("ID"),
    Column("STATE"),
    Column("TASK", least=12, keep_end=True),
    Column("QUEUE", rank=3, least=6, keep_end=True),
    Column("ATTEMPT", rank=4, right=True),
    Column("WHEN", rank=2),
    Column("NOTE", rank=1, least=10),
)
PAGE = 50
BY = ("state", "queue", "task", "tenant", "error-code")


@click.command()
@conditions
@click.option("--limit", type=click.IntRange(1, 1000), show_default=str(PAGE))
@click.option("--before", metavar="ID", help="The next page: the last id of this one.")
@click.option("--count-by", type=click.Choice(BY), help="Count all matching jobs instead of listing them.")
@as_json
@where
@pass_target
def jobs(
    target: Target,
    /,
    limit: int | None,
    before: str | None,
    count_by: str | None,
    as_json: bool,
    **wanted: Any,
) -> None:
    """List jobs, the newest first, or count them.

    --state ready lists the jobs that are due. Jobs that wait for their time are scheduled or retrying, listed soonest
    first; jobs that no worker can claim are held.

    \b
    Examples:
      perdure jobs --state failed --queue mail --error-code http.503 --finished-after 2h
      perdure jobs --state failed --finished-after 1d --count-by error-code
      perdure jobs --limit 200 --json | jq -r '.[].id'
    """
    if count_by is not None and (limit, before) != (None, None):
        raise Misuse("--count-by counts all matching jobs: do not give --limit or --before with it.")
    with target.app_with_tables() as app:
        if count_by is not None:
            _count(app, count_by, wanted, as_json=as_json)
            return
        rows = app.views.jobs(limit=limit or PAGE, before=before, **wanted)
        if as_json:
            print_json([job_document(row, whole=False) for row in rows])
            return
        now = time.time_ns() // 1000
        table(COLUMNS, [line(row, now) for row in rows])
        if not rows:
            say(f"No jobs.{meant(app, wanted['queue'], wanted['task'])}", err=True)
        elif len(rows) == (limit or PAGE):
            say(f"More with --before {rows[-1].id}", err=True)


def _count(app: App, by: str, wanted: dict[str, Any], *, as_json: bool) -> None:
    name = by.replace("-", "_")
    numbers = app.count_jobs_by(cast("By", name), **wanted)
    if as_json:
        print_json([{name: value, "jobs": jobs} for value, jobs in numbers.items()])
        return
    columns = (Column(by.upper().replace("-", " "), least=12), Column("JOBS", right=True))
    table(columns, [[value or "-", number(jobs)] for value, jobs in numbers.items()])
    if not numbers:
        say(f"No jobs.{meant(app, wanted['queue'], wanted['task'])}", err=True)


def line(row: JobRow, now: int) -> list[str]:
    """A job as the cells of a table."""
    at = row.finished_at or row.started_at or row.run_at
    # While a job runs, its row still has the error of the previous attempt, which is not shown. The note of a failed
    # job is its error rather than its reason; in other states the reason comes first.
    error = None
    if row.state != "running" and row.error_kind is not None:
        error = ": ".join(filter(None, (row.error_code, row.error_message)))
    notes = (error, row.reason) if row.state == "failed" else (row.reason, error)
    held = None if row.held == "later" else row.held
    note = next(filter(None, (*notes, row.progress_message, held)), "")
    return [
        row.id,
        shown_state(row, now),
        row.task,
        row.queue,
        f"{row.attempt}/{row.max_attempts}",
        distance(at, now),
        note,
    ]


def shown_state(row: JobRow, now: int) -> str:
    """The visible state of a job: see docs/states.md."""
    return visible_state(row.state, held=row.held, due=row.run_at <= now, error_kind=row.error_kind)


def meant(app: App, queue: str | None, task: str | None) -> str:
    """Suggest a queue or task for a mistyped filter, from the tables of tasks and queues: jobs are too many to read."""
    if queue is None and task is None:
        return ""
    tasks = app.views.task_queues()
    queues = {*tasks.values(), *(known.name for known in app.list_queues())}
    said = "" if queue is None or queue in queues else did_you_mean(queue, queues)
    return said + ("" if task is None or task in tasks else did_you_mean(task, tasks))
