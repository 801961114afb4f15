"""Where a database is, for people: never who logs in, and with what."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.store.postgres_connect import servers
from perdure.store.store import open_store


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ann:hunter2@db.example.com:6432/shop?sslpassword=hunter2", "db.example.com:6432"),
        ("postgresql://ann:hunter2@/shop", "localhost:5432"),
        ("postgresql://a,b:6432/shop", "a:5432,b:6432"),
        ("postgresql:///shop?host=a,b&port=6432", "a:6432,b:6432"),
        ("postgresql:///shop?host=/run/postgresql&password=hunter2", "/run/postgresql:5432"),
        ("postgresql://[::1]:6432/shop", "::1:6432"),
    ],
)
def test_host_and_port_are_all_of_a_url_that_is_shown(
    url: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PGHOST", raising=False)
    monkeypatch.delenv("PGPORT", raising=False)
    assert servers(url) == shown
    assert open_store(url).address == f"postgresql://{shown}/shop"
    assert open_store(url, schema="jobs").address == f"postgresql://{shown}/shop, schema jobs"


def test_a_file_is_shown_with_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_store("sqlite:///jobs.db").address == f"sqlite:///{tmp_path.resolve()}/jobs.db"
    assert open_store("sqlite:///:memory:").address == "sqlite:///:memory:"
