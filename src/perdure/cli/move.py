"""``perdure move``: move all jobs to another database."""

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
@click.option("--to-schema", metavar="NAME", help="The target's schema, if it differs.")
@click.option("--abandon", is_flag=True, help="Give up a move that was interrupted.")
@click.option("--keep", is_flag=True, help="Open a complete target whose source is gone.")
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

    Moves them with their history, keys, queues, tasks and workflows from SOURCE to TARGET, which must be empty. Both
    are URLs. Write env:NAME to read a URL from the environment if it contains a password, because other users of the
    machine can see command lines.
    The move is refused while workers run. If it is interrupted, run it again and it continues. At the end it compares
    both sides row by row. During the move nothing else can write to either side. Afterwards nothing can write to the
    source, but its rows stay.

    --abandon makes the source writable again and empties the target. If one of the two databases is gone, give only the
    other. A target that has received all rows is not emptied if its source is gone; --keep makes such a target
    writable.

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
            raise Misuse("--keep takes only the target, and not together with --abandon.")
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
    print_json(_document(moved)) if as_json else _show_moved(moved)


def _keep(target: str, schema: str, *, as_json: bool) -> None:
    from perdure.move import keep

    kept = keep(target, schema=schema)
    if as_json:
        print_json({"kept": kept})
    else:
        say("All jobs are in this database, and it is open." if kept else "No move was under way.")


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


def _show_moved(moved: Moved | None) -> None:
    if moved is None:
        say("The move was already finished: there was nothing to do.")
        return
    columns = (Column("TABLE"), Column("ROWS", right=True), Column("SHA256", rank=1, least=8))
    table(columns, [(name, number(rows), moved.checksums[name]) for name, rows in moved.rows.items()])
    say(
        f"Moved {number(sum(moved.rows.values()))} rows, equal on both sides. The source is closed for writing."
    )


@contextmanager
def _bar(*, shown: bool) -> Iterator[Progress]:
    """A progress bar for each of the two passes: copy and compare."""
    with ExitStack() as last:
        bars: dict[str, Any] = {}

        def progress(what: str, done: int, total: int) -> None:
            if what not in bars:
                last.close()
                bar = click.progressbar(length=total, label=f"{what:7}", file=sys.stderr)
                bars[what] = last.enter_context(bar)
            bars[what].update(done - bars[what].pos)

        yield progress if shown else lambda what, done, total: None
