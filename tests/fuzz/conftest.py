"""The ground on which everything is tried: one for each database, for the whole package."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from perdure import App
from tests.conformance.conftest import migrated_postgres, migrated_sqlite
from tests.fuzz.ground import Ground

__all__ = ["migrated_postgres", "migrated_sqlite"]


@pytest.fixture(scope="package", params=["sqlite", "postgres"])
def ground(request: pytest.FixtureRequest) -> Iterator[Ground]:
    where = request.getfixturevalue(f"migrated_{request.param}")
    url = f"sqlite:///{where}" if request.param == "sqlite" else where
    with App(url) as app:
        app.migrate()
    ground = Ground(url)
    yield ground
    ground.close()
