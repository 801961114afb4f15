"""A database with a table of things, and ways to reach it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from perdure.store.postgres.store import PostgresStore
from tests.store.proxy import Proxy
from tests.store.things import TABLE, TIMES, postgres_store


@pytest.fixture
def admin(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A plain connection to a PostgreSQL database that has the table."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(TABLE.format(time=TIMES["postgres"]).encode())
        yield connection


@pytest.fixture
def store(admin: psycopg.Connection[Any], postgres_url: str) -> Iterator[PostgresStore]:
    """A store that knows the table."""
    store = postgres_store(postgres_url)
    yield store
    store.close()


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[Proxy]:
    """A network in front of the database."""
    with Proxy(postgres_url) as proxy:
        yield proxy
