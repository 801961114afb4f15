"""A database in memory does what a file does, on one connection."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from perdure.errors import Refused, SchemaMissing
from perdure.store.sqlite.store import SqliteStore
from tests.store.notes import STATEMENTS, add, add_and_refuse, listed, note_store


@pytest.fixture
def store() -> Iterator[SqliteStore]:
    store = note_store(":memory:")
    yield store
    store.close()


def test_it_is_written_and_read(store: SqliteStore) -> None:
    store.perform(add, "note")
    with pytest.raises(Refused):
        store.perform(add_and_refuse, "refused")
    assert store.perform(listed) == ["note"]
    assert len(store._process_state._database.connections) == 1


def test_threads_and_coroutines_share_it(store: SqliteStore) -> None:
    async def many() -> list[list[str]]:
        await asyncio.gather(*[store.aperform(add, f"task {number}") for number in range(50)])
        return await asyncio.gather(*[store.aperform(listed) for _ in range(20)])

    threads = [threading.Thread(target=store.perform, args=(add, f"thread {number}")) for number in range(20)]
    for thread in threads:
        thread.start()
    answers = asyncio.run(many())
    for thread in threads:
        thread.join()
    assert all(len(notes) >= 50 for notes in answers)
    assert len(store.perform(listed)) == 70


def test_each_store_has_its_own(store: SqliteStore) -> None:
    store.perform(add, "note")
    other = note_store(":memory:")
    assert other.perform(listed) == []
    other.close()


def test_its_schema_can_be_checked() -> None:
    store = SqliteStore(":memory:", statements=STATEMENTS)
    with pytest.raises(SchemaMissing):
        store.check_schema()
    assert store.migrate() != []
    store.check_schema()
    store.close()
