"""``perdure worker``: run jobs."""

from __future__ import annotations

import click

from perdure.cli import typed
from perdure.cli.target import Target, full_path, pass_target, where

LEVELS = ("debug", "info", "warning", "error", "critical")


@click.command()
@click.argument("module_app", metavar="[MODULE:APP]", required=False)
@click.option(
    "--queues",
    metavar="QUEUES",
    callback=typed.queues,
    envvar="PERDURE_QUEUES",
    show_envvar=True,
    help="The queues to serve: in this order (a,b) or by weight (a=3,b=1).  [default: every queue]",
)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    default=20,
    envvar="PERDURE_CONCURRENCY",
    show_default=True,
    show_envvar=True,
    help="The most jobs at a time on the event loop and in threads.",
)
@click.option(
    "--processes",
    type=click.IntRange(min=0),
    help="In addition, the most jobs at a time of tasks with run_in='process', each in its own process; "
    "0 leaves such tasks to other workers.  [default: one for each CPU]",
)
@click.option("--burst", is_flag=True, help="Stop when no job is due.")
@click.option(
    "--drain",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="Seconds that running jobs get to finish after SIGTERM.",
)
@click.option("--name", help="The worker's name for operators.  [default: host and process]")
@click.option(
    "--log-level",
    type=click.Choice(LEVELS, case_sensitive=False),
    default="info",
    envvar="PERDURE_LOG_LEVEL",
    show_default=True,
    show_envvar=True,
)
@click.option("--log-format", type=click.Choice(("text", "json")), default="text", show_default=True)
@where
@pass_target
@click.pass_context
def worker(
    ctx: click.Context,
    target: Target,
    module_app: str | None,
    queues: list[str] | dict[str, int] | None,
    concurrency: int,
    processes: int | None,
    burst: bool,
    drain: float,
    name: str | None,
    log_level: str,
    log_format: str,
) -> None:
    """Run jobs until stopped.

    \b
    Examples:
      perdure worker shop.jobs:app
      perdure worker shop.jobs:app --queues mail=3,default=1 --concurrency 50 --processes 2
      perdure worker shop.jobs:app --burst --log-format json
    """
    from perdure.cli.logs import set_up

    target.app = module_app or target.app
    if target.path is None:
        raise click.UsageError("Which app? Run perdure worker MODULE:APP, or set $PERDURE_APP.")
    app = target.program()
    set_up(log_level, log_format)
    ctx.exit(
        app.run_worker(
            queues=queues,
            concurrency=concurrency,
            processes=processes,
            burst=burst,
            drain=drain,
            name=name,
            target=full_path(target.path),
        )
    )
