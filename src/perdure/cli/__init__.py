"""The command line. Each command is a module that loads the rest of perdure only when it runs."""

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
    "demo": ("demo", "Run a few hundred jobs and show what became of them."),
    "worker": ("worker", "Run jobs until stopped."),
    "enqueue": ("enqueue", "Enqueue a job of TASK."),
    "jobs": ("jobs", "List jobs, the newest first, or count them."),
    "job": ("job", "Show everything about a job."),
    "explain": ("job", "Say why a job is not running, in a sentence."),
    "cancel": ("acts", "Cancel jobs, by their ids or all that fit."),
    "requeue": ("acts", "Start a new run of jobs that failed or were canceled."),
    "run-now": ("acts", "Let jobs that wait for their time be due now."),
    "delete": ("acts", "Delete jobs and their history."),
    "pause": ("acts", "Hand out no more jobs of a queue."),
    "resume": ("acts", "Hand out jobs of a queue again."),
    "acts": ("acts", "List what operators did."),
    "replay": ("replay", "Make a new job from one that succeeded."),
    "workflows": ("workflows", "List workflows, the newest first."),
    "workflow": (
        "workflows",
        "Show a workflow as a tree, decide a gate, cancel or requeue it.",
    ),
    "queues": ("fleet", "Count the jobs of each queue."),
    "tasks": ("tasks", "List the tasks, what is set for them and who serves them."),
    "workers": ("fleet", "List the workers."),
    "stats": ("fleet", "Show queues, workers and the database at a glance."),
    "bench": ("bench.command", "Measure perdure and the bare database, side by side."),
    "migrate": ("schema", "Bring the database's tables up to date."),
    "check": ("schema", "Check the schema, the database, and who serves."),
    "sql": ("schema", "Print the tables' definition."),
    "grants": ("grants", "Print GRANT statements for roles of PostgreSQL."),
    "move": ("move", "Move all jobs to another database."),
}
"""In which module each command is, and what it does: a third of the help's time would go into loading them all."""


def main() -> None:
    """What the command ``perdure`` runs."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that lacks a letter is no reason to fail.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        _run()
    except SystemExit as end:
        if "asyncio" in sys.modules:  # a worker ran, and with it the code of others
            from perdure.cli.last_resort import end_in_time

            end_in_time(end.code if isinstance(end.code, int) else int(end.code is not None))
        raise


def _run() -> None:
    try:
        program(prog_name="perdure")
    except OSError as error:
        from perdure.cli.lost_output import tell_lost_output

        if tell_lost_output(error):
            sys.exit(1)
        raise


class Program(click.Group):
    """Finds commands by name, suggests one for a typo, and turns our errors into a line and an exit code."""

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

    Commands that only read need a database; worker, and arguments that are more than plain JSON, need your app.
    Without --app or --url the database is $PERDURE_URL, then $DATABASE_URL, then sqlite:///perdure.db.

    \b
    Examples:
      perdure worker shop.jobs:app --queues mail,default
      perdure --url postgresql://localhost/shop jobs --state failed
      perdure explain 01990c5e-6f3a-7cc0-b7d2-3f1c8a2d9e10

    \b
    Exit codes:
      0  done
      1  not found, or refused
      2  used wrongly: an option, a URL, a module
      3  the database is not available
      4  the database's schema is missing or does not fit

    \b
    Completion of commands and options, in bash (for zsh and fish replace the word):
      eval "$(_PERDURE_COMPLETE=bash_source perdure)"
    """
    ctx.ensure_object(Target)
