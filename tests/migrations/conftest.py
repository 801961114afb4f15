"""A new database, of each kind or of one."""

from __future__ import annotations

import pytest

from tests.migrations.database import Database


@pytest.fixture
def database(url: str) -> Database:
    return Database(url)


@pytest.fixture
def postgres(postgres_url: str) -> Database:
    return Database(postgres_url)
