"""``perdure bench``: the command. workloads.py measures, report.py prints."""

from __future__ import annotations

import math

import click

from perdure.cli.target import Target, pass_target, where

LEAST, MOST = 2, 600


def _number(ctx: click.Context, param: click.Parameter, value: float) -> float:
    """Refuse nan, which click's range check accepts."""
    if math.isnan(value):
        raise click.BadParameter(f"{value} is not in the range {LEAST}<=x<={MOST}.")
    return value


@click.command()
@click.option(
    "--seconds",
    type=click.FloatRange(min=LEAST, max=MOST),
    callback=_number,
    default=20.0,
    show_default=True,
    help="About how long to measure.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON line for each figure.")
@where
@pass_target
def bench(target: Target, seconds: float, as_json: bool) -> None:
    """Measure perdure and plain SQL on your database, side by side.

    It uses temporary tables: a new schema on PostgreSQL, which the role must be allowed to create, or a new file beside
    yours on SQLite. Your tables and jobs are not touched, but other users of the database notice the load. A rate is
    the median of three rounds; the slowest and the fastest round are shown, too.

    \b
    Examples:
      perdure bench --url postgresql://localhost/shop
      perdure bench --app shop.jobs:app --seconds 60
      perdure bench --json | jq 'select(.unit == "jobs/s")'
    """
    from perdure.cli.bench.report import print_report
    from perdure.cli.bench.tables import throw_away
    from perdure.cli.bench.workloads import measure

    with target.app_for_database() as theirs, throw_away(theirs) as place:
        figures = measure(place, seconds)
        about = place.app.stats().database
    print_report(figures, f"{about.dialect} {about.version} at {place.address}", as_json=as_json)
