"""``perdure demo``: the command. Its jobs are in show.py."""

from __future__ import annotations

import click


@click.command()
@click.option("--seconds", default=50, show_default=True, help="How long to wait for the last jobs.")
def demo(seconds: int) -> None:
    """Run a few hundred jobs and show their outcomes.

    The jobs are in a temporary SQLite file; nothing else is touched.

    \b
    Examples:
      perdure demo
      perdure demo --seconds 20
    """
    from perdure.cli.show import show

    show(seconds)
