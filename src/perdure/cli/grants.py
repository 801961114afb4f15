"""``perdure grants``: the rights that PostgreSQL roles need."""

from __future__ import annotations

import os

import click

from perdure.cli.documents import as_json, print_json, print_sql
from perdure.cli.failures import Misuse
from perdure.cli.target import Target, load_app, pass_target, where


@click.command()
@click.option("--producer", metavar="ROLE", help="May enqueue jobs and start workflows.")
@click.option("--worker", metavar="ROLE", help="May run jobs, and enqueue others.")
@click.option("--reader", metavar="ROLE", help="May read everything, including arguments.")
@click.option("--operator", metavar="ROLE", help="May act on everything: cancel, requeue, delete, pause.")
@as_json
@where
@pass_target
def grants(
    target: Target,
    producer: str | None,
    worker: str | None,
    reader: str | None,
    operator: str | None,
    as_json: bool,
) -> None:
    """Print GRANT statements for PostgreSQL roles.

    The owner of the tables runs these statements, and runs them again after a migration that adds tables. The command
    itself needs no database.

    \b
    Examples:
      perdure grants --producer shop_web --worker shop_jobs | psql shop
      perdure grants --reader support --schema jobs
    """
    from perdure.store.postgres.grants import Purpose, grants

    roles: list[tuple[Purpose, str | None]] = [
        ("producer", producer),
        ("worker", worker),
        ("reader", reader),
        ("operator", operator),
    ]
    asked: list[tuple[Purpose, str]] = [(purpose, role) for purpose, role in roles if role is not None]
    if not asked:
        raise Misuse("Give at least one role: --producer, --worker, --reader or --operator with its name.")
    for _, role in asked:
        if not role or "\0" in role:
            raise Misuse("The name of a role must not be empty or contain NUL.")
    schema = _schema(target)
    statements = [statement for purpose, role in asked for statement in grants(purpose, role, schema)]
    if as_json:
        print_json({"sql": statements})
        return
    print_sql("".join(f"{statement}\n" for statement in statements))


def _schema(target: Target) -> str:
    from perdure.store.statements import DEFAULT_SCHEMA

    app = load_app(target.path) if target.url is None and target.path is not None else None
    url = target.url or (os.environ.get("PERDURE_URL") if app is None else app.database.url)
    if url is not None and url.startswith(("sqlite:", "sqlite+")):
        raise Misuse("SQLite has no roles: the permissions of the file and its directory decide.")
    return target.schema or (DEFAULT_SCHEMA if app is None else app.database.schema)
