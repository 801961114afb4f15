"""What is particular to connections of sqlite3."""

from __future__ import annotations

import sqlite3
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from perdure.errors import (
    Refused,
    StoreBusy,
    UnsupportedConnection,
)
from perdure.ops.op import Op, ask, operation
from perdure.store.borrowed import join
from perdure.store.sqlite.store import SqliteStore
from tests.store.things import (
    insert,
    insert_and_refuse,
    read,
)


def sqlite_connection(store: SqliteStore, **options: Any) -> sqlite3.Connection:
    return sqlite3.connect(store._database.path, **options)


def test_a_class_derived_from_a_known_one_is_known(sqlite_store: SqliteStore) -> None:
    class Own(sqlite3.Connection):
        pass

    connection = sqlite_connection(sqlite_store, factory=Own)
    join.perform(connection, sqlite_store, insert, "a")
    connection.commit()
    connection.close()
    assert sqlite_store.perform(read) == ["a"]


def test_autocommit_is_refused_on_sqlite(sqlite_store: SqliteStore) -> None:
    connection = sqlite_connection(sqlite_store, isolation_level=None)
    with pytest.raises(UnsupportedConnection, match="begin one first") as refused:
        join.perform(connection, sqlite_store, insert, "a")
    assert refused.value.code == "conn.autocommit"
    connection.execute("BEGIN")
    join.perform(connection, sqlite_store, insert, "a")
    connection.execute("COMMIT")
    assert sqlite_store.perform(read) == ["a"]
    connection.close()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.12 has another autocommit")
@pytest.mark.parametrize("autocommit", [True, False])
def test_the_newer_autocommit(sqlite_store: SqliteStore, autocommit: bool) -> None:
    connection = sqlite_connection(sqlite_store, autocommit=autocommit)
    if autocommit:
        with pytest.raises(UnsupportedConnection) as refused:
            join.perform(connection, sqlite_store, insert, "a")
        assert refused.value.code == "conn.autocommit"
    else:
        join.perform(connection, sqlite_store, insert, "a")
        connection.commit()
        assert sqlite_store.perform(read) == ["a"]
    connection.close()


def test_a_refusal_holds_no_lock_on_sqlite(sqlite_store: SqliteStore) -> None:
    connection = sqlite_connection(sqlite_store)
    with pytest.raises(Refused):
        join.perform(connection, sqlite_store, insert_and_refuse, "a")
    assert not connection.in_transaction
    sqlite_store.perform(insert, "b")
    connection.close()


def test_what_begins_by_reading_may_still_write_on_sqlite(sqlite_store: SqliteStore) -> None:
    """The transaction we begin has the write lock from its start: nobody can come in between."""
    connection, other = sqlite_connection(sqlite_store), sqlite_connection(sqlite_store, timeout=0)

    @operation("write")
    def read_and_insert() -> Op[None]:
        yield from ask("read")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
        yield from ask("insert", id="a", note=None)

    join.perform(connection, sqlite_store, read_and_insert)
    connection.commit()
    assert sqlite_store.perform(read) == ["a"]
    connection.close()
    other.close()


def test_another_writer_makes_sqlite_busy(sqlite_store: SqliteStore) -> None:
    holder, connection = (sqlite_connection(sqlite_store, timeout=0) for _ in range(2))
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusy):
        join.perform(connection, sqlite_store, insert, "a")
    assert not connection.in_transaction
    holder.close()
    connection.close()


def test_a_transaction_that_began_to_read_cannot_write_after_others(sqlite_store: SqliteStore) -> None:
    connection = sqlite_connection(sqlite_store, isolation_level=None)
    connection.execute("BEGIN")
    connection.execute("SELECT * FROM perdure_thing").fetchall()
    sqlite_store.perform(insert, "a")
    with pytest.raises(StoreBusy, match="BEGIN IMMEDIATE"):
        join.perform(connection, sqlite_store, insert, "b")
    connection.close()


def test_texts_and_rows_stay_as_the_caller_wants_them(sqlite_store: SqliteStore) -> None:
    connection = sqlite_connection(sqlite_store)
    connection.text_factory, connection.row_factory = bytes, sqlite3.Row
    join.perform(connection, sqlite_store, insert, "a")
    assert join.perform(connection, sqlite_store, read) == ["a"]
    assert connection.row_factory is sqlite3.Row
    connection.row_factory = None
    assert connection.execute("SELECT id FROM perdure_thing").fetchall() == [(b"a",)]
    connection.close()


def test_a_connection_of_another_thread_is_refused(sqlite_store: SqliteStore) -> None:
    with ThreadPoolExecutor(1) as thread:
        connection = thread.submit(sqlite_connection, sqlite_store).result()
        with pytest.raises(UnsupportedConnection, match="another thread"):
            join.perform(connection, sqlite_store, insert, "a")
        thread.submit(connection.close).result()
