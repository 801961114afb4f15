"""``perdure enqueue``: enqueue a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from perdure.cli import typed
from perdure.cli.documents import as_json, print_json
from perdure.cli.failures import failure
from perdure.cli.output import say
from perdure.cli.suggest import did_you_mean
from perdure.cli.target import Target, check_schema, pass_target, where

if TYPE_CHECKING:
    from perdure.app import App
    from perdure.client.job import Job


@click.command()
@click.argument("task")
@click.argument("arguments", callback=typed.json_text, default="{}")
@click.option("--queue")
@click.option("--priority", type=int, help="Higher runs first.")
@click.option(
    "--delay", metavar="SPAN", callback=typed.seconds, help="Wait this long before it runs: 90, 5m, 2h, 1d."
)
@click.option(
    "--run-at",
    metavar="TIME",
    callback=typed.parse_time,
    help="Do not run it before 2026-03-01T12:00:00+01:00.",
)
@click.option(
    "--expires",
    metavar="SPAN",
    callback=typed.seconds,
    help="After this time no attempt begins, and it is canceled.",
)
@click.option("--max-attempts", type=int)
@click.option("--timeout", metavar="SPAN", callback=typed.seconds, help="The most time for one attempt.")
@click.option("--tenant")
@click.option("--idempotency-key", "--key", help="A repeated request with this key returns the same job.")
@click.option("--unique-key", help="At most one unfinished job has this key.")
@click.option("--tag", "tags", multiple=True, help="May be given several times.")
@click.option("--meta", metavar="JSON", callback=typed.json_object)
@as_json
@where
@pass_target
def enqueue(
    target: Target,
    /,
    task: str,
    arguments: str,
    tags: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Enqueue a job of TASK.

    ARGUMENTS is a JSON object; - reads it from stdin.
    With --app the task's annotations decide how to read it, as in a worker: "2026-03-01" becomes a date,
    "1.50" a Decimal, a list a set.

    \b
    Examples:
      perdure enqueue mail.send '{"to": "ann@example.com"}'
      perdure enqueue report --queue slow --delay 2h --key report-2026-03
    """
    with target.program() as app:
        if not app.tasks:
            check_schema(app)
        job = _enqueue(app, task, arguments, {**options, "tags": list(tags) or None})
        if as_json:
            print_json(
                {
                    "id": job.id,
                    "task": job.task,
                    "queue": job.queue,
                    "state": job.state,
                    "created": job.created,
                }
            )
        else:
            say(job.id)
            if not job.created:
                say("This job existed already.", err=True)


def _enqueue(app: App, task: str, arguments: str, options: dict[str, Any]) -> Job[Any]:
    from perdure.errors import UnknownTask

    values = _values(app, task, arguments)
    try:
        return app.enqueue(task, values, **options)
    except UnknownTask as error:
        raise failure(error, did_you_mean(task, app.views.task_queues())) from None


def _values(app: App, task: str, arguments: str) -> dict[str, object]:
    """The arguments, decoded to the types of the task's annotations, or to JSON values if its code is not loaded."""
    import json

    known = app.tasks.get(task)
    return dict(json.loads(arguments)) if known is None else known.arguments.decode(arguments)
