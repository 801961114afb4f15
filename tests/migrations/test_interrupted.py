"""After a process was killed at any statement of a migration, the next one can continue."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.errors import SchemaMissing, SchemaOutdated
from perdure.store.schema.files import migrations
from tests.migrations.database import Database, fork_server
from tests.migrations.samples import online, plain

KILLED = -9


def whole(database: Database, tmp_path: Path) -> list[list[tuple[object, ...]]]:
    """The shape after migrating without any trouble."""
    if database.dialect == "sqlite":
        untroubled = Database(f"sqlite:///{tmp_path / 'untroubled.db'}")
        untroubled.migrate()
        return untroubled.shape()
    database.migrate()
    shape = database.shape()
    database.run("DROP SCHEMA perdure CASCADE")
    return shape


def test_killed_at_each_statement_of_a_transaction_nothing_was_done(
    database: Database, tmp_path: Path
) -> None:
    expected = whole(database, tmp_path)
    shipped = migrations(database.dialect)
    with fork_server(database.url) as run:
        for n in range(1, len(shipped[0].statements) + 1):
            assert run(f"before_migration_statement:kill@{n}") == (KILLED, [])
            with pytest.raises(SchemaMissing):
                database.check()
            assert database.shape()[0] == []
        assert run(f"after_migration_statement:kill@{n}") == (KILLED, [])
        assert database.shape()[0] == []

        database.migrate(to=len(shipped))
        before = database.shape()
        for n in range(1, len(plain(database.dialect).statements) + 1):
            assert run(f"before_migration_statement:kill@{n}") == (KILLED, [])
            assert database.shape() == before
        with pytest.raises(SchemaOutdated, match=r"lacks migrations .* more things, .* while others write;"):
            database.check()
        rest = [len(shipped) + 1, len(shipped) + 2]
        assert run("") == (0, rest)
        database.check()
        assert database.shape() == expected


def test_killed_at_each_statement_of_an_online_migration_it_goes_on_there(
    database: Database, tmp_path: Path
) -> None:
    expected = whole(database, tmp_path)
    migration = online(database.dialect)
    database.migrate(to=migration.version - 1)
    total = len(migration.statements)
    with fork_server(database.url) as run:
        for done in range(total):
            # Before the statement, after it and before it is recorded, and after that.
            for failpoint in ("before_migration_statement:kill", "after_migration_statement:kill"):
                assert run(failpoint) == (KILLED, [])
                assert recorded(database) == ([(migration.version, False)] if done else [])
            if done + 1 < total:
                assert run("before_migration_statement:kill@2") == (KILLED, [])
                assert recorded(database) == [(migration.version, False)]
                with pytest.raises(SchemaOutdated, match=f"after {done + 1} of {total} statements; call app"):
                    database.check()
        assert run("") == (0, [migration.version])
        database.check()
        assert run("") == (0, [])
        assert database.shape() == expected


def recorded(database: Database) -> list[tuple[int, bool]]:
    """What the history says of the online migration."""
    version = online(database.dialect).version
    return [(one, bool(finished)) for one, finished in database.history() if one == version]
