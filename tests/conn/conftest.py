"""A store with a table of things on each kind of database."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest

from perdure.store.sqlite.store import SqliteStore
from tests.store.conftest import admin, proxy, store
from tests.store.things import TABLE, TIMES, statements

__all__ = ["admin", "proxy", "store"]


@pytest.fixture
def sqlite_store(sqlite_url: str) -> Iterator[SqliteStore]:
    path = sqlite_url.removeprefix("sqlite:///")
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(TABLE.format(time=TIMES["sqlite"]))
    connection.close()
    store = SqliteStore(path, statements=statements("sqlite"))
    store.migrate()
    yield store
    store.close()
