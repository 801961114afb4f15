"""The commands of operators on jobs: cancel, requeue, run-now, delete; and ``acts``, which lists what they did."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from perdure.cli.conditions import conditions
from perdure.cli.documents import act_document, as_json, print_json
from perdure.cli.failures import Misuse, words
from perdure.cli.output import number, say
from perdure.cli.tables import Column, facts, table
from perdure.cli.target import Target, pass_target, where
from perdure.model.time_text import distance

if TYPE_CHECKING:
    from perdure.app import App
    from perdure.client.bulk import Act, BulkResult
    from perdure.errors import JobNotFound

OUTCOMES = (Column("ID"), Column("OUTCOME"))
ACTS = (
    Column("ID", right=True),
    Column("WHEN", rank=1),
    Column("ACTOR", least=8),
    Column("ACTION"),
    Column("SUBJECT", least=12),
    Column("DETAIL", rank=2, least=20),
)
DONE = ("canceled", "cancel_requested", "requeued", "due_now", "deleted")


def _whoami() -> str | None:
    """The name of the current user: from $USER, else from the login."""
    if (user := os.environ.get("USER", "").strip()) != "":
        return user
    from getpass import getuser

    try:
        return getuser()
    except (OSError, KeyError, ImportError):
        return None


actor = click.option(
    "--actor", envvar="PERDURE_ACTOR", default=_whoami, help="Who does it.  [$PERDURE_ACTOR, then $USER]"
)
reason = click.option("--reason", help="Why; the history shows it.")


def acting(function: Any) -> Any:
    """Add the options that every command on jobs shares."""
    for option in (
        pass_target,
        where,
        as_json,
        click.option("--yes", "-y", is_flag=True, help="Do not ask."),
        click.option("--dry-run", is_flag=True, help="Count the matching jobs and change nothing."),
        actor,
        click.option("--all", "every", is_flag=True, help="Every job; only without conditions."),
        conditions,
        click.argument("ids", nargs=-1, metavar="[ID]..."),
    ):
        function = option(function)
    return function


class JobAction(NamedTuple):
    """An action on jobs: the app's methods for one job and for many jobs, and the options for both methods."""

    app: App
    one: Callable[..., str]
    many: Callable[..., BulkResult]
    title: str
    options: Mapping[str, Any]


@click.command()
@reason
@acting
def cancel(target: Target, reason: str | None, actor: str | None, **asked: Any) -> None:
    """Cancel jobs, by id or by conditions. Running jobs are asked to stop.

    \b
    Examples:
      perdure cancel 01990c5e-6f3a-7cc0-b7d2-3f1c8a2d9e10
      perdure cancel --queue mail --state scheduled --reason "wrong template"
    """
    with target.app_with_tables() as app:
        options = {"reason": reason, "by": actor}
        _act(JobAction(app, app.cancel_job, app.cancel_jobs, "Cancel", options), **asked)


@click.command()
@click.option("--keep-checkpoint", is_flag=True, help="Continue from the last saved checkpoint.")
@reason
@acting
def requeue(
    target: Target, reason: str | None, actor: str | None, keep_checkpoint: bool, **asked: Any
) -> None:
    """Start a new run of jobs that failed or were canceled. Choose them by id or by conditions.

    \b
    Examples:
      perdure requeue 01990c5e-6f3a-7cc0-b7d2-3f1c8a2d9e10
      perdure requeue --task mail.send --error-code http.503 --finished-after 1d
    """
    with target.app_with_tables() as app:
        options = {"reason": reason, "by": actor, "keep_checkpoint": keep_checkpoint}
        _act(JobAction(app, app.requeue_job, app.requeue_jobs, "Requeue", options), **asked)


@click.command("run-now")
@acting
def run_now(target: Target, actor: str | None, **asked: Any) -> None:
    """Make scheduled and retrying jobs due now. Choose them by id or by conditions.

    \b
    Examples:
      perdure run-now 01990c5e-6f3a-7cc0-b7d2-3f1c8a2d9e10
      perdure run-now --state retrying --queue mail
    """
    with target.app_with_tables() as app:
        _act(JobAction(app, app.run_now, app.run_jobs_now, "Run now", {"by": actor}), **asked)


@click.command()
@reason
@acting
def delete(target: Target, reason: str | None, actor: str | None, **asked: Any) -> None:
    """Delete jobs and their history. Running jobs are asked to stop instead. Choose them by id or by conditions.

    \b
    Examples:
      perdure delete 01990c5e-6f3a-7cc0-b7d2-3f1c8a2d9e10
      perdure delete --state succeeded --finished-before 30d --yes
    """
    with target.app_with_tables() as app:
        options = {"reason": reason, "by": actor}
        _act(JobAction(app, app.delete_job, app.delete_jobs, "Delete", options), **asked)


@click.command()
@click.option("--action", help="Only this action, such as requeue_jobs or pause_queue.")
@click.option("--actor", help="Only what this operator did.")
@click.option("--subject", help='Only what was done to this, such as "queue mail".')
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@click.option("--before", metavar="ID", type=int, help="The next page: the last id of this one.")
@as_json
@where
@pass_target
def acts(target: Target, /, limit: int, as_json: bool, **asked: Any) -> None:
    """List what operators did. The list covers bulk actions, queues, tasks and workflows, the newest first.

    perdure job ID shows what was done to one job.

    \b
    Examples:
      perdure acts --actor ann
      perdure acts --action requeue_jobs --json | jq '.[0].detail.counts'
    """
    with target.app_with_tables() as app:
        found = app.list_acts(limit=limit, **asked)
    if as_json:
        print_json([act_document(act) for act in found])
        return
    table(ACTS, [act_line(act, time.time_ns() // 1000) for act in found])
    if not found:
        say("No acts.", err=True)
    elif len(found) == limit:
        say(f"More with --before {found[-1].id}", err=True)


def _act(
    action: JobAction,
    ids: tuple[str, ...],
    every: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **wanted: Any,
) -> None:
    asked = every or any(value is not None for value in wanted.values())
    if bool(ids) == asked:
        raise Misuse("Choose the jobs: give either ids, or conditions such as --queue, or --all.")
    if every and any(value is not None for value in wanted.values()):
        raise Misuse("--all means every job: give conditions or --all, not both.")
    if not ids:
        _act_on_many(action, {**wanted, "all": every}, dry_run=dry_run, yes=yes, as_json=as_json)
    elif dry_run:
        raise Misuse("--dry-run counts jobs that match conditions: do not give ids with it.")
    else:
        _act_on_each(action, ids, as_json=as_json)


def _act_on_each(action: JobAction, ids: tuple[str, ...], *, as_json: bool) -> None:
    from perdure.errors import Refused, StoreBusy

    outcomes: list[tuple[str, str]] = []
    for id, missing in _whole_ids(action.app, ids).items():
        if missing is not None:
            outcomes.append((id, "not_found"))
            say(f"{id}: {missing}", err=True)
            continue
        try:
            outcomes.append((id, action.one(id, **action.options)))
        except Refused as error:
            outcomes.append((id, error.code.removeprefix("job.")))
            say(f"{id}: {words(error)}", err=True)
        except StoreBusy as error:
            outcomes.append((id, "locked"))
            say(f"{id}: {words(error)}", err=True)
    if as_json:
        counts = Counter(outcome for _, outcome in outcomes)
        print_json({"counts": counts, "jobs": [{"id": id, "outcome": outcome} for id, outcome in outcomes]})
    else:
        table(OUTCOMES, outcomes)
    if any(outcome not in DONE for _, outcome in outcomes):
        raise click.exceptions.Exit(1)


def _whole_ids(app: App, typed: tuple[str, ...]) -> dict[str, JobNotFound | None]:
    """Complete abbreviated ids. An unknown id gets its error as the value.

    All ids are completed before the first action, so that an ambiguous id stops the command before it changes a job.
    """
    from perdure.errors import JobNotFound

    found: dict[str, JobNotFound | None] = {}
    for id in typed:
        try:
            found[app.views.whole_job_id(id)] = None
        except JobNotFound as error:
            found[id] = error
    return found


def _act_on_many(
    action: JobAction, wanted: Mapping[str, Any], *, dry_run: bool, yes: bool, as_json: bool
) -> None:
    if not (dry_run or yes or asks()):
        raise Misuse("There is no terminal to ask for confirmation: give --yes, or --dry-run to count first.")
    if yes and not sys.stderr.isatty():
        acted = action.many(**wanted, **action.options)
    else:
        acted = action.many(**wanted, **action.options, dry_run=True)
        if not dry_run and acted.counts:
            if not yes:
                click.confirm(f"{action.title}: {_outcome_text(acted.counts)}?", abort=True, err=True)
            with _bar(action, acted) as progress:
                acted = action.many(**wanted, **action.options, progress=progress)
    if as_json:
        print_json({"counts": acted.counts, "act_id": acted.act_id, "dry_run": dry_run})
    elif acted.counts:
        facts([(outcome, number(jobs)) for outcome, jobs in acted.counts.items()])
        if dry_run:
            say("Nothing was changed: these would be the outcomes.", err=True)
    else:
        say("No jobs match.", err=True)
    undone = {outcome: jobs for outcome, jobs in acted.counts.items() if outcome not in DONE}
    if undone and not dry_run:
        say(f"Not done: {_outcome_text(undone)}.", err=True)
        raise click.exceptions.Exit(1)


def asks() -> bool:
    """Whether there is a terminal to ask for confirmation."""
    return sys.stdin.isatty()


@contextmanager
def _bar(action: JobAction, expected: BulkResult) -> Iterator[Callable[[Counter[Any]], None] | None]:
    if not sys.stderr.isatty():
        yield None
        return
    with click.progressbar(length=expected.counts.total(), label=action.title, file=sys.stderr) as bar:
        yield lambda counts: bar.update(counts.total() - bar.pos)


def _outcome_text(counts: Mapping[Any, int]) -> str:
    return ", ".join(f"{number(jobs)} {outcome}" for outcome, jobs in counts.items())


def act_line(act: Act, now: int) -> list[str]:
    """An act as the cells of a table."""
    import json

    at = distance(round(act.at.timestamp() * 1e6), now)
    detail = json.dumps(act.detail, ensure_ascii=False) if act.detail else ""
    return [str(act.id), at, act.actor or "", act.action, act.subject, detail]
