"""Migrations as SQL scripts, to run by hand or inside the migrations of Alembic, Django and other tools."""

from __future__ import annotations

import re
from collections.abc import Sequence

from perdure.store.schema.files import Migration, history, split
from perdure.store.schema.pending import Work
from perdure.store.statements import DEFAULT_SCHEMA, Dialect, name_tables


def install(
    migrations: Sequence[Migration], dialect: Dialect, schema: str = DEFAULT_SCHEMA, *, anew: bool
) -> list[str]:
    """The statements that apply migrations in one transaction, and record them in the history.

    ``anew``: also create the schema and the history. Indexes are not created CONCURRENTLY, because that is impossible
    in a transaction.
    """
    statements = _beginning(dialect, schema) if anew else []
    for migration in migrations:
        statements += [_CONCURRENTLY.sub(r"\1", statement) for statement in migration.statements]
        statements.append(_record(migration))
    return [name_tables(statement, dialect, schema).strip() for statement in statements]


def script(work: Sequence[Work], dialect: Dialect, schema: str = DEFAULT_SCHEMA) -> str:
    """The SQL that ``apply`` of migrate.py would run. Each migration is a transaction, unless it is online."""
    parts = _beginning(dialect, schema) if [one for one in work if one.migration.version == 1] else []
    for migration, done in work:
        statements = [*migration.statements[done:], _record(migration)]
        parts += statements if migration.is_online else ["BEGIN;", *statements, "COMMIT;"]
    return "".join(f"{name_tables(part, dialect, schema).strip()}\n\n" for part in parts)


_CONCURRENTLY = re.compile(r"^(CREATE (?:UNIQUE )?INDEX|DROP INDEX) CONCURRENTLY\b", re.MULTILINE)


def _beginning(dialect: Dialect, schema: str) -> list[str]:
    quoted = '"{}"'.format(schema.replace('"', '""'))
    head = [f"CREATE SCHEMA IF NOT EXISTS {quoted};"] if dialect == "postgres" else []
    return [*head, *split(history(dialect))]


def _record(migration: Migration) -> str:
    return (
        "INSERT INTO perdure.migration (version, name, checksum, finished)\n"
        f"VALUES ({migration.version}, '{migration.name}', '{migration.checksum}', true)\n"
        "ON CONFLICT (version) DO UPDATE SET checksum = excluded.checksum, finished = true;"
    )
