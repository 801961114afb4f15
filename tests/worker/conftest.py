"""An app on each kind of database, and workers in processes of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure import App
from tests.conformance.conftest import migrated_postgres, migrated_sqlite, postgres_url, sqlite_url
from tests.worker import hostile
from tests.worker.fleet import Fleet
from tests.worker.outage import Outage

__all__ = ["migrated_postgres", "migrated_sqlite", "postgres_url", "sqlite_url"]


@pytest.fixture
def app(url: str) -> Iterator[App]:
    """With an ordinary lease: no heartbeat comes in the time of a test, unless it is asked for."""
    app = App(url, synchronous="normal")
    yield app
    app.close()


@pytest.fixture
def brisk_app(url: str) -> Iterator[App]:
    """With a lease of a second, and a heartbeat three times in it."""
    app = App(url, synchronous="normal", lease=1)
    yield app
    app.close()


@pytest.fixture
def brief_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that stops does not wait long for outcomes that cannot be recorded, and longer for its last record."""
    monkeypatch.setattr("perdure.worker.worker.FLUSH", 0.2)
    monkeypatch.setattr("perdure.worker.worker.LAST", 60.0)


@pytest.fixture
def hostile_app(url: str) -> Iterator[App]:
    """Enqueues jobs whose handlers harm their worker."""
    app = hostile.make(url)
    yield app
    app.close()


@pytest.fixture
def fleet(url: str, tmp_path: Path) -> Iterator[Fleet]:
    """Workers of ``tests.worker.worker_app`` on this database, each in a process of its own."""
    fleet = Fleet(url, tmp_path)
    yield fleet
    fleet.close()


@pytest.fixture
def outage(url: str) -> Iterator[Outage]:
    """A database with perdure's tables that the test can take away."""
    with App(url) as app:
        app.migrate()
    outage = Outage(url)
    yield outage
    outage.close()
