"""Two databases to move between, in each direction."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.moves.ends import Ends


@pytest.fixture(params=["sqlite to postgres", "postgres to sqlite"])
def ends(request: pytest.FixtureRequest, tmp_path: Path, postgres_url: str) -> Ends:
    """Both are new and empty."""
    file = f"sqlite:///{tmp_path / 'jobs.db'}"
    return Ends(file, postgres_url) if request.param.startswith("sqlite") else Ends(postgres_url, file)
