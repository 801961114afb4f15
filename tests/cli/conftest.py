"""A shop with jobs on each kind of database, and the command line to look at it with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.shop import Shop
from tests.conformance.conftest import migrated_postgres, migrated_sqlite, postgres_url, sqlite_url

__all__ = ["migrated_postgres", "migrated_sqlite", "postgres_url", "sqlite_url"]


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("APP", "URL", "QUEUES", "CONCURRENCY", "LOG_LEVEL"):
        monkeypatch.delenv(f"PERDURE_{name}", raising=False)
    monkeypatch.delenv("DATABASE_URL", raising=False)


@pytest.fixture
def shop(url: str) -> Iterator[Shop]:
    shop = Shop(url)
    yield shop
    shop.close()
