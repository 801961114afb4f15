"""The command line. The module of a command loads the rest of perdure only when the command runs."""

from __future__ import annotations

import sys
from importlib import import_module
from io import TextIOWrapper
from typing import Any

import click

import perdure
from perdure.cli.failures import failure, printable_errors
from perdure.cli.suggest import other_command
from perdure.cli.target import Target, where

COMMANDS = {
    "demo": ("demo", "Run a few hundred jobs and show their outcomes."),
    "worker": ("worker", "Run jobs until stopped."),
    "enqueue": ("enqueue", "Enqueue a job of TASK."),
    "jobs": ("jobs", "List jobs, the newest first, or count them."),
    "job": ("job", "Show everything about a job."),
    "explain": ("job", "Say why a job is not running, in a sentence."),
    "cancel": ("acts", "Cancel jobs, by id or by conditions."),
    "requeue": ("acts", "Start a new run of jobs that failed or were canceled."),
    "run-now": ("acts", "Make scheduled and retrying jobs due now."),
    "delete": ("acts", "Delete jobs and their history."),
    "pause": ("queue", "Stop handing out jobs of a queue."),
    "resume": ("queue", "Hand out jobs of a queue again."),
    "acts": ("acts", "List what operators did."),
    "replay": ("replay", "Make a new job from one that succeeded."),
    "workflows": ("workflows", "List workflows, the newest first."),
    "workflow": (
        "workflows",
        "Show a workflow as a tree, resolve a gate, cancel or requeue it.",
    ),
    "queues": ("fleet", "Count the jobs of each queue."),
    "queue": ("queue", "Show everything about a queue, or change it."),
    "limits": ("limits", "List the limits on how many jobs run at once."),
    "limit": ("limits", "Set a shared limit for all workers, or go back to the code's."),
    "tasks": ("tasks", "List the tasks, their settings and the workers that serve them."),
    "workers": ("fleet", "List the workers."),
    "stats": ("fleet", "Show queues, workers and the database at a glance."),
    "bench": ("bench.command", "Measure perdure and plain SQL on your database, side by side."),
    "migrate": ("schema", "Bring the database's tables up to date."),
    "check": ("schema", "Check the schema, the database and the workers."),
    "sql": ("schema", "Print the definition of the tables."),
    "grants": ("grants", "Print GRANT statements for PostgreSQL roles."),
    "move": ("move", "Move all jobs to another database."),
}
"""The module and the description of each command. A module is loaded only when its command is needed: loading them all
would take up a third of the time of --help."""


def main() -> None:
    """The entry point of the command ``perdure``."""
    for stream in (sys.stdout, sys.stderr):
        # A character that the terminal's encoding lacks must not make the command fail.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        _run()
    except SystemExit as end:
        if "asyncio" in sys.modules:  # a worker ran, so threads of users' handlers may still run
            from perdure.cli.last_resort import end_in_time

            end_in_time(end.code if isinstance(end.code, int) else int(end.code is not None))
        raise


def _run() -> None:
    try:
        program(prog_name="perdure")
    except OSError as error:
        from perdure.cli.lost_output import report_lost_output

        if report_lost_output(error):
            sys.exit(1)
        raise


class Program(click.Group):
    """Finds commands by name, suggests corrections of typos, and turns a PerdureError into a line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        home, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(f"perdure.cli.{home}"), cmd_name.replace("-", "_"))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, does) for name, (_, does) in COMMANDS.items()])

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        with printable_errors():
            return super().make_context(info_name, args, parent, **extra)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            ctx.fail(f"No such command {args[0]!r}.{other_command(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with printable_errors():
            try:
                return super().invoke(ctx)
            except Exception as error:
                from perdure.errors import PerdureError

                if isinstance(error, PerdureError):
                    raise failure(error) from None
                raise


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(perdure.__version__, prog_name="perdure")
@where
@click.pass_context
def program(ctx: click.Context) -> None:
    """Durable jobs on SQLite and PostgreSQL.

    Most commands need only a database. The worker needs your app, and so does enqueue for arguments of types that JSON
    lacks. Without --app and --url the database is $PERDURE_URL, else $DATABASE_URL, else sqlite:///perdure.db.

    \b
    Examples:
      perdure worker shop.jobs:app --queues mail,default
      perdure --url postgresql://localhost/shop jobs --state failed
      perdure explain 01990c5e-6f3a-7cc0-b7d2-3f1c8a2d9e10

    \b
    Exit codes:
      0  done
      1  not found, or refused
      2  wrong usage: an option, a URL or a module
      3  the database is not available
      4  the database's schema is missing or does not fit

    \b
    Completion of commands and options in bash (in zsh: zsh_source, in fish: fish_source):
      eval "$(_PERDURE_COMPLETE=bash_source perdure)"
    """
    ctx.ensure_object(Target)
