"""What the hot statements cost on a small and on a large table, measured once for all tests that look at it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator

import psycopg
import pytest

from perdure.store.store import open_store
from tests.postgres import with_database
from tests.sql import plans_postgres, plans_sqlite

SMALL, LARGE = 20_000, 200_000


@pytest.fixture(scope="session")
def sqlite_costs(tmp_path_factory: pytest.TempPathFactory) -> plans_sqlite.Costs:
    path = str(tmp_path_factory.mktemp("plans") / "jobs.db")
    store = open_store(f"sqlite:///{path}")
    store.migrate()
    store.close()
    return plans_sqlite.measure(path, SMALL, LARGE)


@pytest.fixture(scope="session")
def postgres_costs(postgres_server: str) -> Iterator[plans_postgres.Costs]:
    name = f"perdure_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}_{secrets.token_hex(6)}"
    url = with_database(postgres_server, name)
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE template0".encode())
        try:
            store = open_store(url)
            store.migrate()
            store.close()
            yield plans_postgres.measure(url, SMALL, LARGE)
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
