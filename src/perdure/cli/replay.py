"""``perdure replay``: make a new job from a job that succeeded."""

from __future__ import annotations

import click

from perdure.cli.acts import actor
from perdure.cli.documents import as_json, job_document, print_json
from perdure.cli.output import say
from perdure.cli.target import Target, pass_target, where


@click.command()
@click.argument("id")
@click.option("--request-key", help="Another replay under this key returns the same job.")
@click.option("--reason", help="Kept in the job's history.")
@actor
@as_json
@where
@pass_target
def replay(
    target: Target,
    id: str,
    request_key: str | None,
    reason: str | None,
    actor: str | None,
    as_json: bool,
) -> None:
    """Make a new job from one that succeeded.

    Prints the id of the new job, which has the same arguments and options and is due now. The history of each job
    names the other.

    \b
    Examples:
      perdure replay 01990c5e-6f3a-7cc0-b7d2-3f1c8a2d9e10 --reason "the printer was empty"
      perdure replay 01990c5e-6f3a-7cc0-b7d2-3f1c8a2d9e10 --request-key ticket-42 --json | jq .created
    """
    with target.app_with_tables() as app:
        job = app.replay_job(app.views.whole_job_id(id), request_key=request_key, reason=reason, by=actor)
        if as_json:
            row = job.refresh().row
            assert row is not None, "it was just looked at"
            print_json({**job_document(row, whole=False), "created": job.created})
            return
    say(job.id)
    if not job.created:
        say("The job was already replayed with this key.", err=True)
