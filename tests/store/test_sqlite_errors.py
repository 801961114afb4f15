"""SQLite's errors become perdure's, and quote nothing."""

from __future__ import annotations

import logging
import sqlite3
import time
from pathlib import Path

import pytest

from perdure.errors import (
    InternalError,
    PerdureError,
    SchemaMissing,
    SchemaOutdated,
    StoreAway,
    StoreBusy,
    StoreFull,
    StoreReadOnly,
    UnsupportedDatabase,
)
from perdure.store.sqlite.errors import patiently, translate
from tests.store.notes import listed, nonsense, note_store


def sqlite_error(name: str, message: str = "secret: INSERT INTO perdure_job") -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(message)
    error.sqlite_errorname = name
    return error


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("SQLITE_BUSY", StoreBusy),
        ("SQLITE_BUSY_RECOVERY", StoreBusy),
        ("SQLITE_LOCKED_SHAREDCACHE", StoreBusy),
        ("SQLITE_PROTOCOL", StoreBusy),
        ("SQLITE_READONLY", StoreReadOnly),
        ("SQLITE_READONLY_DIRECTORY", StoreReadOnly),
        ("SQLITE_READONLY_DBMOVED", StoreAway),
        ("SQLITE_FULL", StoreFull),
        ("SQLITE_IOERR_WRITE", StoreAway),
        ("SQLITE_CANTOPEN", StoreAway),
        ("SQLITE_NOTADB", UnsupportedDatabase),
        ("SQLITE_CORRUPT_INDEX", UnsupportedDatabase),
        ("SQLITE_CONSTRAINT_UNIQUE", InternalError),
        ("SQLITE_SCHEMA", SchemaMissing),
        ("SQLITE_ERROR", InternalError),
        ("SQLITE_TOOBIG", InternalError),
    ],
)
def test_meanings(name: str, kind: type[PerdureError], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "perdure.store"):
        meaning = translate(sqlite_error(name))
    assert type(meaning) is kind
    assert "secret" not in str(meaning)
    assert caplog.messages == [f"SQLite returned the error {name}"]


def test_a_missing_table_is_a_missing_schema() -> None:
    assert isinstance(translate(sqlite_error("SQLITE_ERROR", "no such table: perdure_job")), SchemaMissing)


@pytest.mark.parametrize(
    "message", ["no such column: config", "table perdure_task has no column named redact"]
)
def test_a_missing_column_is_an_older_schema(message: str) -> None:
    assert isinstance(translate(sqlite_error("SQLITE_ERROR", message)), SchemaOutdated)


def test_other_errors_stay_as_they_are() -> None:
    error = ValueError("mine")
    assert translate(error) is error


def test_a_read_of_nonsense(tmp_path: Path) -> None:
    store = note_store(tmp_path / "jobs.db")
    with pytest.raises(SchemaMissing) as raised:
        store.perform(nonsense)
    assert raised.value.__cause__ is None
    assert "nowhere" not in str(raised.value)
    store.close()


def test_a_connection_that_failed_is_not_used_again(tmp_path: Path) -> None:
    store = note_store(tmp_path / "jobs.db")
    store.perform(listed)
    before = set(store._process_state._database.connections)
    with pytest.raises(SchemaMissing):
        store.perform(nonsense)
    assert len(store._process_state._database.connections) == 1
    assert store.perform(listed) == []
    assert len(store._process_state._database.connections - before) == 1
    store.close()


def test_patience_repeats_what_is_busy_and_nothing_else() -> None:
    answers = iter(
        [sqlite_error("SQLITE_BUSY"), sqlite_error("SQLITE_BUSY_SNAPSHOT"), sqlite_error("SQLITE_FULL")]
    )
    rests: list[float] = []

    def action() -> None:
        raise next(answers)

    with pytest.raises(sqlite3.OperationalError) as raised:
        patiently(action, until=time.monotonic() + 60, rest=rests.append)
    assert raised.value.sqlite_errorname == "SQLITE_FULL"
    assert len(rests) == 2


def test_patience_ends_in_time() -> None:
    def action() -> None:
        raise sqlite_error("SQLITE_BUSY")

    with pytest.raises(sqlite3.OperationalError):
        patiently(action, until=time.monotonic(), rest=lambda pause: pytest.fail("it rested"))


def test_pauses_grow_to_a_bound() -> None:
    pauses: list[float] = []

    def action() -> None:
        if len(pauses) < 20:
            raise sqlite_error("SQLITE_BUSY")

    patiently(action, until=time.monotonic() + 60, rest=pauses.append)
    assert pauses[0] < 0.001
    assert all(0.005 <= pause <= 0.015 for pause in pauses[10:])
    assert len(set(pauses)) == 20
