"""Only its owner may read a new SQLite file; an existing file keeps its mode."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from perdure.errors import PerdureError, SchemaMissing, StoreAway
from perdure.store.sqlite import connect
from perdure.store.sqlite.connect import Database
from perdure.store.sqlite.files import make_private
from perdure.store.sqlite.store import SqliteStore
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
    monkeypatch.setattr(connect, "make_private", lambda path: None)
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


@pytest.mark.parametrize("mask", [0, 0o022, 0o077])
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o660])
def test_the_lock_of_a_worker_is_shared_like_the_database(tmp_path: Path, mode: int, mask: int) -> None:
    with umask(mask), closing(note_store(tmp_path / "jobs.db")) as store:
        store.perform(add, "note")
        (tmp_path / "jobs.db").chmod(mode)
        release = store.lock_liveness("w1")
        assert modes(tmp_path)["jobs.db-worker-w1"] == oct(mode)[2:]
        release()
    assert "jobs.db-worker-w1" not in modes(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
def test_the_lock_of_a_worker_has_the_group_of_the_database(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o777)
    with closing(note_store(tmp_path / "jobs.db")) as store:
        store.perform(add, "note")
        os.chown(tmp_path / "jobs.db", 65534, 4321)
        (tmp_path / "jobs.db").chmod(0o660)
        release = store.lock_liveness("w1")
        found = (tmp_path / "jobs.db-worker-w1").stat()
        assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (65534, 4321, 0o660)
        release()


def test_the_lock_of_a_worker_outside_the_group_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    with closing(note_store(tmp_path / "jobs.db")) as store:
        store.perform(add, "note")
        (tmp_path / "jobs.db").chmod(0o660)
        monkeypatch.setattr(os, "fchown", refuse)
        release = store.lock_liveness("w1")
        assert modes(tmp_path)["jobs.db-worker-w1"] == "600"
        release()
