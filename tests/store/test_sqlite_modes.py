"""Who may read an SQLite file: its owner alone, unless it was there before, or the owner says otherwise."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from perdure.errors import PerdureError, SchemaMissing, StoreAway
from perdure.store import sqlite_connect
from perdure.store.sqlite import SqliteStore
from perdure.store.sqlite_connect import Database
from perdure.store.sqlite_files import make_private
from tests.store.notes import add, note_store


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def modes(directory: Path) -> dict[str, str]:
    return {path.name: oct(path.stat().st_mode & 0o777)[2:] for path in directory.iterdir()}


@pytest.mark.parametrize("mask", [0, 0o022, 0o077])
def test_what_is_made_is_its_owners_alone(tmp_path: Path, mask: int) -> None:
    with umask(mask), closing(note_store(tmp_path / "jobs.db")) as store:
        store.perform(add, "note")
        assert modes(tmp_path) == {"jobs.db": "600", "jobs.db-wal": "600", "jobs.db-shm": "600"}


def test_the_umask_takes_away_more_and_gives_nothing(tmp_path: Path) -> None:
    with umask(0o277):
        make_private(str(tmp_path / "jobs.db"))
    assert modes(tmp_path) == {"jobs.db": "400"}


@pytest.mark.parametrize("mode", [0o640, 0o664, 0o644])
def test_a_file_that_is_there_keeps_the_mode_that_its_owner_gave_it(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE orders (id integer PRIMARY KEY)")
    path.chmod(mode)
    with closing(note_store(path)) as store:
        store.perform(add, "note")
        assert set(modes(tmp_path).values()) == {oct(mode)[2:]}


def test_it_has_its_mode_before_sqlite_sees_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def connect(*args: object, **options: object) -> None:
        seen.append(modes(tmp_path))
        raise sqlite3.OperationalError

    monkeypatch.setattr(sqlite3, "connect", connect)
    with umask(0), pytest.raises(PerdureError):
        Database(str(tmp_path / "jobs.db")).open()
    assert seen == [{"jobs.db": "600"}]


def test_sqlite_itself_makes_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where ours has just gone."""
    monkeypatch.setattr(sqlite_connect, "make_private", lambda path: None)
    with pytest.raises(StoreAway, match="cannot be opened"):
        Database(str(tmp_path / "jobs.db")).open()
    assert modes(tmp_path) == {}


@pytest.mark.parametrize("name", ["per%20cent?mode=memory#part.db", "ünï cödé.db", "a;b&c=d.db"])
def test_a_name_that_means_something_in_a_uri_is_a_name(tmp_path: Path, name: str) -> None:
    with closing(SqliteStore(str(tmp_path / name))) as store:
        store.migrate()
        store.check_schema()
    assert modes(tmp_path)[name] == "600"


def test_who_only_looks_makes_no_file(tmp_path: Path) -> None:
    with closing(SqliteStore(str(tmp_path / "jobs.db"))) as store, pytest.raises(SchemaMissing):
        store.check_schema()
    assert modes(tmp_path) == {}


def test_a_link_leads_to_a_private_file(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "jobs.db")
    with umask(0), closing(note_store(tmp_path / "link.db")) as store:
        store.perform(add, "note")
        assert oct((tmp_path / "jobs.db").stat().st_mode & 0o777) == "0o600"
