"""``perdure demo``: the command; what it plays is in show.py."""

from __future__ import annotations

import click


@click.command()
@click.option("--seconds", default=50, show_default=True, help="When to stop waiting for the last ones.")
def demo(seconds: int) -> None:
    """Run a few hundred jobs and show what became of them.

    On an SQLite file that is gone afterwards; nothing else is touched.

    \b
    Examples:
      perdure demo
      perdure demo --seconds 20
    """
    from perdure.cli.show import show

    show(seconds)
