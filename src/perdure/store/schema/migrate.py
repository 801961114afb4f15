"""Migrate a database: apply numbered files and record their checksums in a history, one process at a time.

``apply`` changes the schema, ``check`` only reads it. Both raise an error if the history does not fit this version.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol

from perdure.errors import Invalid, SchemaForeign, SchemaMissing, SchemaOutdated
from perdure.internal import failpoints
from perdure.ops.op import Param, Row
from perdure.store.move.marks import refuse_moved
from perdure.store.schema.files import Migration, history, split, tables, titles
from perdure.store.schema.pending import Work, outstanding
from perdure.store.statements import Dialect

COMMAND: Final = "call app.migrate() or run perdure migrate"


class Target(Protocol):
    """The database to migrate.

    Statements name tables as ``perdure.job``; the target puts in the actual schema or prefix.
    """

    @property
    def dialect(self) -> Dialect: ...

    @property
    def schema(self) -> str: ...

    def look(self) -> AbstractContextManager[None]:
        """A transaction that only reads and blocks nobody."""
        ...

    def exclusive_transaction(self) -> AbstractContextManager[None]:
        """A transaction during which no other process migrates. It commits unless the block fails."""
        ...

    def make_room(self) -> None:
        """Create the schema if it must exist before the history table. Called inside an exclusive transaction."""
        ...

    def run(self, statement: str) -> None: ...

    def run_online(self, statement: str) -> None:
        """Run a statement of an online migration, if necessary outside the transaction.

        A statement that runs outside is recorded afterwards, in the transaction. If the process dies in between, the
        statement runs a second time.
        """
        ...

    def rows(self, sql: str, params: Mapping[str, Param] = ...) -> list[Row]:
        """Run one statement with parameters spelled ``:name``."""
        ...


def apply(target: Target, known: Sequence[Migration], *, to: int | None = None) -> Iterator[int]:
    """Apply the missing migrations, up to version ``to``.

    Yield the version of each migration that this call finished.
    """
    work = look(target, known, to=to)
    while work:
        with target.exclusive_transaction():
            # Another process may have done some of the work meanwhile.
            work = _pending(target, known, to)
            finished = _work(target, work[0]) if work else False
        if finished:
            yield work[0].migration.version


def look(target: Target, known: Sequence[Migration], *, to: int | None = None) -> list[Work]:
    """The pending work, in order. Changes nothing."""
    refuse_unknown(to, known)
    with target.look():
        return _pending(target, known, to)


def check(target: Target, known: Sequence[Migration]) -> None:
    """Raise an error if the schema is missing or outdated, or if its jobs were moved to another database."""
    with target.look():
        work = _pending(target, known)
        if work and not _history(target):
            raise SchemaMissing(f"perdure's tables do not exist in this database; {COMMAND}.")
        if not work and "move" in tables(known):
            refuse_moved(target)
    if work and (done := work[0].done):
        migration = work[0].migration
        raise SchemaOutdated(
            f"Migration {migration} is under way, or was interrupted, after {done} of "
            f"{len(migration.statements)} statements; {COMMAND}."
        )
    if work:
        raise SchemaOutdated(f"The database lacks {titles(one.migration for one in work)}; {COMMAND}.")


def refuse_unknown(version: int | None, known: Sequence[Migration]) -> None:
    if version is not None and version not in [migration.version for migration in known]:
        raise Invalid(
            f"There is no migration {version}; this version of perdure has 1 to {len(known)}.",
            code="schema.no_such_version",
        )


def _pending(target: Target, known: Sequence[Migration], to: int | None = None) -> list[Work]:
    rows = _history(target)
    if not rows:
        _refuse_strangers(target, known)
    return [one for one in outstanding(rows, known) if to is None or one.migration.version <= to]


def _work(target: Target, work: Work) -> bool:
    """Apply a migration, or the next statement of an online migration. Return whether the migration is finished."""
    migration, done = work
    if not _has_history(target):
        target.make_room()
        for statement in split(history(target.dialect)):
            target.run(statement)
    statements = migration.statements
    run = target.run_online if migration.is_online else target.run
    for statement in statements[done : done + 1] if migration.is_online else statements:
        if failpoints.armed:
            failpoints.reach("before_migration_statement")
        try:
            run(statement)
        except Exception as error:
            error.add_note(f"In migration {migration}, statement {done + 1} of {len(statements)}.")
            raise
        if failpoints.armed:
            failpoints.reach("after_migration_statement")
        done += 1
    _record(target, migration, done, finished=done == len(statements))
    return done == len(statements)


def _record(target: Target, migration: Migration, done: int, *, finished: bool) -> None:
    target.rows(
        "INSERT INTO perdure.migration (version, name, checksum, finished)"
        " VALUES (:version, :name, :checksum, :finished)"
        " ON CONFLICT (version) DO UPDATE SET checksum = excluded.checksum, finished = excluded.finished"
        " RETURNING version",
        {
            "version": migration.version,
            "name": migration.name,
            "checksum": migration.checksum_after(done),
            "finished": finished,
        },
    )


def _history(target: Target) -> list[Row]:
    if not _has_history(target):
        return []
    return target.rows("SELECT version, name, checksum, finished FROM perdure.migration ORDER BY version")


def _has_history(target: Target) -> bool:
    columns = {name for (name,) in target.rows(_COLUMNS[target.dialect], {"schema": target.schema})}
    if columns and not columns >= {"version", "name", "checksum", "finished"}:
        raise _foreign(target, "migration")
    return bool(columns)


def _refuse_strangers(target: Target, known: Sequence[Migration]) -> None:
    """Refuse tables with our names but without a history: perdure did not create them, or the history was lost."""
    there = {name for (name,) in target.rows(_RELATIONS[target.dialect], {"schema": target.schema})}
    for table in tables(known):
        if _place(target, table) in there:
            raise _foreign(target, table)


def _foreign(target: Target, table: str) -> SchemaForeign:
    return SchemaForeign(
        f"The database has a table {_place(target, table)} that perdure did not make, or whose history was "
        f"lost; restore {_place(target, 'migration')} from a backup, or give perdure a schema or file of its own."
    )


def _place(target: Target, table: str) -> str:
    return table if target.dialect == "postgres" else f"perdure_{table}"


_COLUMNS: Mapping[Dialect, str] = {
    "sqlite": "SELECT name FROM pragma_table_info('perdure_migration')",
    "postgres": "SELECT attname FROM pg_catalog.pg_attribute"
    " JOIN pg_catalog.pg_class ON pg_class.oid = attrelid"
    " JOIN pg_catalog.pg_namespace ON pg_namespace.oid = relnamespace"
    " WHERE nspname = CAST(:schema AS text) AND relname = 'migration' AND attnum > 0 AND NOT attisdropped",
}

_RELATIONS: Mapping[Dialect, str] = {
    "sqlite": "SELECT name FROM sqlite_master",
    "postgres": "SELECT relname FROM pg_catalog.pg_class"
    " JOIN pg_catalog.pg_namespace ON pg_namespace.oid = relnamespace"
    " WHERE nspname = CAST(:schema AS text)",
}
