"""What is particular to Django's connection."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from perdure.store.borrowed import join
from perdure.store.store import Store
from tests.conn.drivers import with_django
from tests.conn.refusals import refuses
from tests.store.things import insert, read


@pytest.fixture(params=["sqlite", "postgres"])
def django(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Store]]:
    sqlite = request.param == "sqlite"
    store: Store = request.getfixturevalue("sqlite_store" if sqlite else "store")
    connection = with_django(request.getfixturevalue("sqlite_url" if sqlite else "postgres_url"))
    yield connection, store
    connection.close()


def test_django_outside_atomic_is_refused(django: tuple[Any, Store]) -> None:
    connection, store = django
    refuses(connection, store, "conn.autocommit", match=r"inside transaction\.atomic")
    assert store.perform(read) == []


def test_django_that_must_roll_back_is_refused(django: tuple[Any, Store]) -> None:
    from django.db import transaction

    connection, store = django
    with transaction.atomic():
        transaction.set_rollback(True)
        refuses(connection, store, "conn.aborted")


def test_django_s_wrapper_is_taken_like_its_proxy(django: tuple[Any, Store]) -> None:
    from django.db import connections, transaction

    with transaction.atomic():
        join.perform(connections["default"], django[1], insert, "a")
    assert django[1].perform(read) == ["a"]


def test_django_s_connection_of_another_thread_is_refused(django: tuple[Any, Store]) -> None:
    from django.db import connections

    connections["default"].ensure_connection()
    with ThreadPoolExecutor(1) as thread:
        thread.submit(
            refuses, connections["default"], django[1], "conn.closed", match="another thread"
        ).result()
