"""A fresh database for each test, created quickly: SQLite's is a copy, PostgreSQL's is emptied before each use."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from perdure.app import App
from tests.conformance.flow import Flow
from tests.conformance.world import World
from tests.postgres import with_database
from tests.sql.tally import TABLES


@pytest.fixture(scope="session")
def migrated_postgres(postgres_server: str) -> Iterator[str]:
    """A database with the schema, made once for each process of the session."""
    name = f"perdure_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}_{secrets.token_hex(6)}"
    url = with_database(postgres_server, name)
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE template0".encode())
        app = App(url)
        app.migrate()
        app.close()
        yield url
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


# A backend of a process that was killed may still commit what it was told.
END_OTHERS = """
SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""
RESET = "SET lock_timeout = '10s'; DROP FUNCTION IF EXISTS perdure.refuse CASCADE;" + "".join(
    f"DELETE FROM perdure.{table};" for table in TABLES
)


@pytest.fixture
def postgres_url(migrated_postgres: str) -> str:
    """Reset the database: delete the rows of the previous test, and undo its changes of the schema."""
    with psycopg.connect(migrated_postgres, autocommit=True) as connection:
        connection.execute(END_OTHERS)
        connection.execute(RESET.encode())
    return migrated_postgres


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the schema, to be copied."""
    path = tmp_path_factory.mktemp("migrated") / "jobs.db"
    app = App(f"sqlite:///{path}")
    app.migrate()
    app.close()
    return path


@pytest.fixture
def sqlite_url(migrated_sqlite: Path, tmp_path: Path) -> str:
    return f"sqlite:///{shutil.copy(migrated_sqlite, tmp_path)}"


@pytest.fixture
def world(url: str) -> Iterator[World]:
    world = World(url)
    yield world
    world.close()


@pytest.fixture
def postgres_world(postgres_url: str) -> Iterator[World]:
    """A database on which other transactions may hold row locks."""
    world = World(postgres_url)
    yield world
    world.close()


@pytest.fixture
def flow(world: World) -> Flow:
    return Flow(world)
