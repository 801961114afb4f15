"""Compare a database's history with the known migrations: find the pending migrations, or why none may be applied."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from perdure.errors import SchemaChanged, SchemaDirty, SchemaNewer
from perdure.ops.op import Row
from perdure.store.schema.files import Migration


class Work(NamedTuple):
    """A migration that is not finished."""

    migration: Migration
    done: int = 0
    """How many of its statements are done. Only an online migration can stop between two statements."""


def outstanding(history: Iterable[Row], known: Sequence[Migration]) -> list[Work]:
    """The pending migrations. Raises a SchemaError if the history does not fit this version."""
    history = list(history)
    ours = {migration.version: migration for migration in known}
    for version, name, _, _ in history:
        if version not in ours:
            raise SchemaNewer(
                f"The database has migration {version:04} {name}, which this version of perdure lacks; "
                "upgrade perdure."
            )
    work = {migration.version: Work(migration) for migration in known}
    for version, _, checksum, finished in history:
        if finished:
            _refuse_if_changed(ours[version], checksum)
            del work[version]
        else:
            work[version] = Work(ours[version], _done(ours[version], checksum))
    latest = max((version for version, *_ in history), default=0)
    for version in work:
        if version < latest:
            raise SchemaDirty(
                f"The database has migration {ours[latest]}, but {ours[version]} before it is not complete; "
                "restore it from a backup.",
                code="schema.gap",
            )
    return list(work.values())


def _refuse_if_changed(migration: Migration, checksum: str) -> None:
    if checksum != migration.checksum:
        raise SchemaChanged(f"Migration {migration} was applied from a different file; reinstall perdure.")


def _done(migration: Migration, checksum: str) -> int:
    """How many statements of an unfinished migration were run: the recorded checksum is of these statements only."""
    if not migration.is_online:
        raise SchemaDirty(
            f"Migration {migration} was begun and never finished; restore the database from a backup."
        )
    for done in range(len(migration.statements)):
        if checksum == migration.checksum_after(done):
            return done
    raise SchemaChanged(
        f"Migration {migration} was begun from a different file; finish it with the version that began it."
    )
