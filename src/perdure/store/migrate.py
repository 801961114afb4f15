"""Bringing a database's tables up to date: numbered files, a history of their checksums, one lock.

``apply`` changes the schema, ``check`` only looks. Both refuse a history that this version cannot have made.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final, NamedTuple, Protocol

from perdure.errors import SchemaChanged, SchemaDirty, SchemaMissing, SchemaNewer, SchemaOutdated
from perdure.ops.op import Param, Row
from perdure.store.statements import DEFAULT_SCHEMA, Dialect, name_tables

COMMAND: Final = "call app.migrate() or run perdure migrate"


class Target(Protocol):
    """A database inside an open transaction. On SQLite that transaction is the lock."""

    @property
    def dialect(self) -> Dialect: ...

    @property
    def schema(self) -> str: ...

    def script(self, sql: str) -> None:
        """Run several statements."""
        ...

    def rows(self, sql: str, params: Mapping[str, Param] = ...) -> list[Row]:
        """Run one statement with parameters spelled ``:name``."""
        ...


class Migration(NamedTuple):
    """One numbered file."""

    version: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return sha256(self.text.encode()).hexdigest()

    def __str__(self) -> str:
        return f"{self.version:04} {self.name}"


def apply(target: Target) -> list[int]:
    """Apply the migrations that are missing; return their versions."""
    _take_turn(target)
    target.script(_named(target, _history(target.dialect)))
    missing = _missing(target)
    for migration in missing:
        _apply(target, migration)
    return [migration.version for migration in missing]


def check(target: Target) -> None:
    """Raise what is wrong with the schema."""
    if not _has_history(target) or not _rows(target, "SELECT 1 FROM perdure.migration LIMIT 1"):
        raise SchemaMissing(f"perdure's tables do not exist in this database; {COMMAND}.")
    if missing := _missing(target):
        raise SchemaOutdated(f"The database lacks {_list(missing)}; {COMMAND}.")


def script(dialect: Dialect, schema: str = DEFAULT_SCHEMA) -> str:
    """What ``apply`` would do to an empty database, to be read, or run by hand; ``check`` is content with it."""
    head = [f"CREATE SCHEMA IF NOT EXISTS {_quoted(schema)};\n"] if dialect == "postgres" else []
    parts = [*head, _history(dialect)]
    for migration in migrations(dialect):
        values = f"{migration.version}, '{migration.name}', '{migration.checksum}', true"
        parts.append(
            f"{migration.text}\n"
            f"INSERT INTO perdure.migration (version, name, checksum, finished) VALUES ({values});\n"
        )
    return "BEGIN;\n\n" + name_tables("\n".join(parts), dialect, schema) + "\nCOMMIT;\n"


@lru_cache
def migrations(dialect: Dialect) -> tuple[Migration, ...]:
    """Every migration of this version, in order."""
    found = (_FILE.fullmatch(file.name) for file in _folder(dialect).iterdir())
    return tuple(
        sorted(
            Migration(int(name["version"]), name["name"].replace("_", " "), _read(dialect, name.string))
            for name in found
            if name
        )
    )


_FILE = re.compile(r"(?P<version>\d{4})_(?P<name>\w+)\.sql")

_HAS_HISTORY: Mapping[Dialect, str] = {
    "sqlite": "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'perdure_migration'",
    "postgres": "SELECT 1 FROM pg_catalog.pg_tables"
    " WHERE schemaname = CAST(:schema AS text) AND tablename = 'migration'",
}


def _take_turn(target: Target) -> None:
    """One process at a time; whoever comes second finds the work done."""
    if target.dialect == "sqlite":
        return
    target.rows(
        "SELECT pg_catalog.pg_advisory_xact_lock(CAST(:key AS bigint))", {"key": _lock_key(target.schema)}
    )
    # To queue for a table's lock stops everybody who needs it after us: rather give up and come again.
    target.rows("SELECT pg_catalog.set_config('lock_timeout', '5s', true)")
    # Not IF NOT EXISTS: that asks for the right to create one even where one exists.
    if not target.rows(
        "SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = CAST(:schema AS text)", _schema(target)
    ):
        target.script(f"CREATE SCHEMA {_quoted(target.schema)}")


def _quoted(schema: str) -> str:
    return '"{}"'.format(schema.replace('"', '""'))


def _lock_key(schema: str) -> int:
    return int.from_bytes(sha256(b"perdure migrates " + schema.encode()).digest()[:8], signed=True)


def _missing(target: Target) -> list[Migration]:
    """What is still to be applied to a schema whose history holds no surprises."""
    known = {migration.version: migration for migration in migrations(target.dialect)}
    history = _rows(
        target, "SELECT version, name, checksum, finished FROM perdure.migration ORDER BY version"
    )
    for version, name, checksum, finished in history:
        _accept(known.pop(version, None), f"{version:04} {name}", checksum, finished=bool(finished))
    return list(known.values())


def _accept(migration: Migration | None, title: str, checksum: str, *, finished: bool) -> None:
    if migration is None:
        raise SchemaNewer(
            f"The database has migration {title}, which this version of perdure lacks; upgrade perdure."
        )
    if not finished:
        raise SchemaDirty(
            f"Migration {title} was begun and never finished; restore the database from a backup."
        )
    if checksum != migration.checksum:
        raise SchemaChanged(f"Migration {title} was applied from a different file; reinstall perdure.")


def _apply(target: Target, migration: Migration) -> None:
    version: dict[str, Param] = {"version": migration.version}
    row = version | {"name": migration.name, "checksum": migration.checksum, "finished": False}
    _rows(
        target,
        "INSERT INTO perdure.migration (version, name, checksum, finished)"
        " VALUES (:version, :name, :checksum, :finished) RETURNING version",
        row,
    )
    target.script(_named(target, migration.text))
    _rows(
        target,
        "UPDATE perdure.migration SET finished = :finished WHERE version = :version RETURNING version",
        version | {"finished": True},
    )


def _has_history(target: Target) -> bool:
    return bool(target.rows(_HAS_HISTORY[target.dialect], _schema(target)))


def _schema(target: Target) -> Mapping[str, Param]:
    return {"schema": target.schema}


def _rows(target: Target, sql: str, params: Mapping[str, Param] | None = None) -> list[Row]:
    return target.rows(_named(target, sql), params or {})


def _named(target: Target, sql: str) -> str:
    return name_tables(sql, target.dialect, target.schema)


def _history(dialect: Dialect) -> str:
    return _read(dialect, "history.sql")


def _read(dialect: Dialect, name: str) -> str:
    return _folder(dialect).joinpath(name).read_text("utf-8")


def _folder(dialect: Dialect) -> Traversable:
    return files("perdure.store").joinpath("sql", "migrations", dialect)


def _list(missing: Iterable[Migration]) -> str:
    titles = [str(migration) for migration in missing]
    return ("migration " if len(titles) == 1 else "migrations ") + ", ".join(titles)
