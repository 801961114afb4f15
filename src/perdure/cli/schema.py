"""``perdure migrate``, ``perdure check`` and ``perdure sql``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from perdure.cli.documents import as_json, print_json, print_sql
from perdure.cli.failures import Failure, failure
from perdure.cli.fleet import unserved_lines
from perdure.cli.limits import LIMITS, exceeded_lines, limit_document, limit_line
from perdure.cli.output import number, say
from perdure.cli.tables import facts, table
from perdure.cli.target import Target, check_schema, pass_target, where

if TYPE_CHECKING:
    from perdure.client.limits import LimitStats
    from perdure.client.stats import Stats
    from perdure.store.statements import Dialect

SAFE_SQLITE = (3, 51, 3)


@click.command()
@click.option("--to", type=int, metavar="N", help="The last migration to apply.  [default: the newest]")
@click.option("--sql", is_flag=True, help="Print the statements and change nothing.")
@as_json
@where
@pass_target
def migrate(target: Target, to: int | None, sql: bool, as_json: bool) -> None:
    """Bring the database's tables up to date. Running it again does no harm.

    \b
    Examples:
      perdure --url postgresql://localhost/shop migrate
      perdure migrate --app shop.jobs:app --json
      perdure migrate --to 3 --sql
    """
    with target.app_for_database() as app:
        if sql:
            text = app.views.migration_sql(to=to)
            print_json({"sql": text}) if as_json else print_sql(text)
            return
        applied = app.migrate(to=to)
        known = app.views.migrations()
    version = max(known) if to is None else to
    if as_json:
        print_json({"applied": applied, "version": version})
        return
    for one in applied:
        say(f"Applied {known[one]}.")
    say(f"The schema is at version {version}{'' if applied else '; there was nothing to do'}.")


@click.command()
@click.option("--strict", is_flag=True, help="Exit with 1 if there are warnings.")
@click.option(
    "--limits", is_flag=True, help="Compare each limit with the running jobs; exit with 1 if exceeded."
)
@as_json
@where
@pass_target
@click.pass_context
def check(ctx: click.Context, target: Target, strict: bool, limits: bool, as_json: bool) -> None:
    """Check the schema, the database and the workers.

    Changes nothing. Warns about an old SQLite, ready jobs that no live worker serves, and held jobs.
    Exits with 4 if the schema is missing or does not fit.

    --limits counts the running jobs under each limit, as claims do: perdure stores no counters that could be wrong.
    Lowering a limit stops no running job, so the limit may be exceeded until some of these jobs have ended.

    \b
    Examples:
      perdure check
      perdure check --limits
      perdure check --strict --json | jq '.warnings[]'
    """
    from perdure.errors import Refused, SchemaError

    with target.app_for_database() as app:
        try:
            check_schema(app)
        except (SchemaError, Refused) as error:
            if as_json:
                print_json(
                    {"ok": False, "schema": {"fits": False, "code": error.code, "message": str(error)}}
                )
                ctx.exit(failure(error).exit_code)
            raise
        stats = app.stats(since=None)
        compared = app.list_limits() if limits else None
    warnings = [*_warnings(stats)]
    exceeded = [] if compared is None else [*exceeded_lines(compared)]
    if as_json:
        print_json(_document(stats, warnings, compared))
    else:
        facts([("database", f"{stats.database.dialect} {stats.database.version}"), ("schema", "fits")])
        for warning in warnings:
            say(f"warning: {warning}")
        if compared is not None:
            table(LIMITS, [limit_line(limit) for limit in compared])
            for line in exceeded or [f"{number(len(compared))} limits were compared, none is exceeded."]:
                say(line)
    ctx.exit(Failure.exit_code if exceeded or (strict and warnings) else 0)


@click.command()
@click.argument("dialect", type=click.Choice(("sqlite", "postgres")), required=False)
@click.option("--after", type=int, metavar="N", default=0, help="Print only the migrations after version N.")
@click.option("--to", type=int, metavar="N", help="The last migration to print.  [default: the newest]")
@as_json
@where
@pass_target
def sql(target: Target, dialect: Dialect | None, after: int, to: int | None, as_json: bool) -> None:
    """Print the definition of the tables.

    Prints the SQL for sqlite, for postgres or for both, and needs no database. A database made from this SQL passes
    perdure check.

    \b
    Examples:
      perdure sql postgres | psql shop
      perdure sql postgres --schema jobs
    """
    from perdure.schema import install_sql
    from perdure.store.statements import DEFAULT_SCHEMA

    dialects: tuple[Dialect, ...] = ("sqlite", "postgres") if dialect is None else (dialect,)
    scripts = {
        one: "\n\n".join(
            [
                "BEGIN;",
                *install_sql(one, schema=target.schema or DEFAULT_SCHEMA, after=after, to=to),
                "COMMIT;\n",
            ]
        )
        for one in dialects
    }
    if as_json:
        print_json(scripts)
        return
    for one, text in scripts.items():
        print_sql(f"-- perdure on {one}\n\n{text}\n")


def _warnings(stats: Stats) -> list[str]:
    version = tuple(map(int, stats.database.version.split("."))) if stats.database.dialect == "sqlite" else ()
    old = [
        f"SQLite {stats.database.version} can corrupt its log if two connections write and checkpoint at once. "
        "perdure's own connections and those given as conn= avoid it. Other connections of your application to this "
        "file may not: use SQLite 3.51.3 or newer, or PRAGMA wal_autocheckpoint = 0 on each of them."
    ]
    held = [
        f"{number(queue.held)} held in queue {name}: workers cannot claim them; perdure explain ID says why."
        for name, queue in stats.queues.items()
        if queue.held
    ]
    return [*(old if version and version < SAFE_SQLITE else ()), *unserved_lines(stats.unserved), *held]


def _document(stats: Stats, warnings: list[str], limits: Sequence[LimitStats] | None) -> dict[str, Any]:
    compared = {} if limits is None else {"limits": [limit_document(limit) for limit in limits]}
    return {
        "ok": not warnings and not any(limit.exceeded for limit in limits or ()),
        "schema": {"fits": True},
        "database": {"dialect": stats.database.dialect, "version": stats.database.version},
        "warnings": warnings,
        "unserved": [lost._asdict() for lost in stats.unserved],
        **compared,
    }
