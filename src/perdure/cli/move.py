"""``perdure move``: everything from one database to another."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import click

from perdure.cli import typed
from perdure.cli.documents import as_json, print_json
from perdure.cli.failures import Misuse
from perdure.cli.output import number, say
from perdure.cli.tables import Column, table
from perdure.cli.target import Target, pass_target, where

if TYPE_CHECKING:
    from perdure.move import Moved, Progress


@click.command()
@click.argument("source", callback=typed.database)
@click.argument("target_url", metavar="TARGET", required=False, callback=typed.database)
@click.option("--to-schema", metavar="NAME", help="The target's schema, if it is another.")
@click.option("--abandon", is_flag=True, help="Give up a move that was interrupted.")
@click.option("--keep", is_flag=True, help="Open a target to which all has come, if the source is gone.")
@as_json
@where
@pass_target
def move(
    target: Target,
    source: str,
    target_url: str | None,
    to_schema: str | None,
    abandon: bool,
    keep: bool,
    as_json: bool,
) -> None:
    """Move all jobs to another database.

    With their history, keys, queues, tasks and workflows, from SOURCE to TARGET, which must be empty; both are URLs,
    or env:NAME for one that stands in the environment: others can see arguments in the list of processes.
    Refused while workers run. Interrupted, it goes on when it is called again; at the end both sides are compared
    row by row. Meanwhile nothing else can write to either, and afterwards nothing to the source, from which nothing
    is deleted.

    --abandon opens the source again and empties the target. One may be given alone, if the other is gone. A target to
    which all has come is not emptied alone; --keep opens it.

    \b
    Examples:
      perdure move sqlite:///jobs.db postgresql://localhost/shop
      perdure move postgresql://localhost/shop sqlite:///jobs.db --json
      OLD=sqlite:///jobs.db NEW=postgresql://ann:secret@db/shop perdure move env:OLD env:NEW
      perdure move sqlite:///jobs.db postgresql://localhost/shop --abandon
      perdure move postgresql://localhost/shop --keep
    """
    from perdure.store.statements import DEFAULT_SCHEMA

    schema = target.schema or DEFAULT_SCHEMA
    if keep:
        if abandon or target_url is not None:
            raise Misuse("--keep takes the target alone.")
        _keep(source, schema, as_json=as_json)
        return
    if abandon:
        _abandon(source, target_url, schema, to_schema, as_json=as_json)
        return
    if target_url is None:
        raise Misuse("Name the database to move to.")
    from perdure.move import move

    with _bar(shown=not as_json and sys.stderr.isatty()) as progress:
        moved = move(source, target_url, schema=schema, target_schema=to_schema, progress=progress)
    print_json(_document(moved)) if as_json else _tell(moved)


def _keep(target: str, schema: str, *, as_json: bool) -> None:
    from perdure.move import keep

    kept = keep(target, schema=schema)
    if as_json:
        print_json({"kept": kept})
    else:
        say("All jobs are here, and it is open." if kept else "No move was under way.")


def _abandon(source: str, target: str | None, schema: str, to_schema: str | None, *, as_json: bool) -> None:
    from perdure.move import abandon

    given_up = abandon(source, target, schema=schema, target_schema=to_schema)
    if as_json:
        print_json({"abandoned": given_up})
    else:
        say("The move was given up." if given_up else "No move was under way.")


def _document(moved: Moved | None) -> dict[str, Any]:
    if moved is None:
        return {"moved": False, "tables": {}}
    tables = {name: {"rows": rows, "sha256": moved.checksums[name]} for name, rows in moved.rows.items()}
    return {"moved": True, "tables": tables}


def _tell(moved: Moved | None) -> None:
    if moved is None:
        say("All was moved before; nothing was to be done.")
        return
    columns = (Column("TABLE"), Column("ROWS", right=True), Column("SHA256", rank=1, least=8))
    table(columns, [(name, number(rows), moved.checksums[name]) for name, rows in moved.rows.items()])
    say(f"Moved {number(sum(moved.rows.values()))} rows, the same on both sides. The source takes no more.")


@contextmanager
def _bar(*, shown: bool) -> Iterator[Progress]:
    """A bar for each of the two passes."""
    with ExitStack() as last:
        bars: dict[str, Any] = {}

        def progress(what: str, done: int, total: int) -> None:
            if what not in bars:
                last.close()
                bar = click.progressbar(length=total, label=f"{what:7}", file=sys.stderr)
                bars[what] = last.enter_context(bar)
            bars[what].update(done - bars[what].pos)

        yield progress if shown else lambda what, done, total: None
