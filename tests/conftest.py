"""Fixtures every test may use: a fresh database of either kind, and the PostgreSQL server behind one of them.

The server is real, started by the first test of a session that needs one and shared by all its processes.
Set PERDURE_TEST_POSTGRES_URL to use a server of your own, PERDURE_TEST_POSTGRES_BIN to start other programs.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import psycopg
import pytest

from tests.claim_window import Eager
from tests.postgres import Server, ServerHandle, with_database

SERVER = pytest.StashKey[Server]()

# A busy machine must not make a test fail; pytest-timeout handles hangs.
hypothesis.settings.register_profile("perdure", deadline=None)
hypothesis.settings.load_profile("perdure")


def pytest_configure(config: pytest.Config) -> None:
    """The process that was started by hand owns the server; processes of xdist get a handle to it."""
    if not hasattr(config, "workerinput") and "PERDURE_TEST_POSTGRES_URL" not in os.environ:
        config.stash[SERVER] = Server()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    if SERVER in node.config.stash:
        node.workerinput["postgres"] = tuple(node.config.stash[SERVER].handle)


def pytest_unconfigure(config: pytest.Config) -> None:
    if SERVER in config.stash:
        config.stash[SERVER].stop()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that need the server, so that ``-m "not postgres"`` starts none."""
    for item in items:
        if (
            "postgres_server" in getattr(item, "fixturenames", ())
            or "postgres" in item.name.partition("[")[2]
        ):
            item.add_marker("postgres")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what tests have counted: output of xdist's processes is not shown."""
    reports = [one for one in terminalreporter.getreports("passed") if one.when == "call"]
    examples = [value for one in reports for name, value in one.user_properties if name == "examples"]
    if examples:
        terminalreporter.write_line(f"fuzz: {sum(examples):,} examples")


@pytest.fixture(scope="session")
def postgres_server(request: pytest.FixtureRequest) -> str:
    """The URL of the server's own database, with the right to create others."""
    if url := os.environ.get("PERDURE_TEST_POSTGRES_URL"):
        return url
    config = request.config
    if hasattr(config, "workerinput"):
        return ServerHandle(*config.workerinput["postgres"]).url()
    return config.stash[SERVER].url()


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """The URL of a new, empty PostgreSQL database."""
    name = f"perdure_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}_{secrets.token_hex(6)}"
    # template0, because nobody can be connected to it: a connection to the template would refuse the copy.
    _administer(postgres_server, f"CREATE DATABASE {name} TEMPLATE template0")
    yield with_database(postgres_server, name)
    _administer(postgres_server, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of an SQLite database that does not exist yet. The path is absolute: four slashes."""
    return f"sqlite:///{tmp_path / 'jobs.db'}"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of a new, empty database: the test runs once on each kind."""
    chosen: str = request.getfixturevalue(f"{request.param}_url")
    return chosen


def _administer(server: str, statement: str) -> None:
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(statement.encode())


@pytest.fixture
def window_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims try the window first, whatever the ones before have found."""
    monkeypatch.setattr("perdure.worker.claimer.ClaimWindowTracker", Eager)
