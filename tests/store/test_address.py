"""A database's address for people to read: never with user or password."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.errors import InvalidConfig
from perdure.store.postgres.url import servers
from perdure.store.store import open_store
from tests.chain import told


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ann:hunter2@db.example.com:6432/shop?sslpassword=hunter2", "db.example.com:6432"),
        ("postgresql://ann:hunter2@/shop", "localhost:5432"),
        ("postgresql://a,b:6432/shop", "a:5432,b:6432"),
        ("postgresql:///shop?host=a,b&port=6432", "a:6432,b:6432"),
        ("postgresql:///shop?host=/run/postgresql&password=hunter2", "/run/postgresql:5432"),
        ("postgresql://[::1]:6432/shop", "::1:6432"),
        ("postgresql://ann:hun#ter?2:%40%2F@db:6432/shop?user=ann@corp&application_name=a@b", "db:6432"),
        ("postgresql:///shop?host=@abstract", "@abstract:5432"),
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


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://zoe:hunter@two@db:1/shop",
        "postgresql://zoe:hunter@two@three@db:1/shop",
        "postgresql://zoe:hunter@@db:1/shop",
        "postgresql://zoe@corp:hunter@db:1/shop",
        "postgresql://zoe:12/hunter@db:1/shop",
        "postgresql://zoe:hunter/two@db:1/shop",
        "postgresql://zoe:hunter@12/two@db:1/shop",
        "postgresql://zoe:hunter?two@three@db:1/shop",
        "postgresql://zoe:hunter#two@three@db:1/shop",
        "postgresql://zoe:12?hunter=two/three@db:1/shop",
        "postgresql://zoe:hunter%@db:1/shop",
        "postgresql://zoe:hunter@db,bob:two@other/shop",
        "postgresql://hunter%40db/shop",
        "postgresql:///shop?host=hunter@db",
        "postgresql:///shop?password=two&hunter=three",
        "postgresql:///shop?hunter2=three",
        "postgresql://zoe:hunter",
        "postgresql://zoe:hunter@[db/shop",
    ],
)
def test_a_url_whose_password_is_not_where_it_seems_is_refused_and_nothing_of_it_shown(url: str) -> None:
    store = open_store(url, patience=0)
    for ask in (lambda: store.address, lambda: servers(url), store.check_schema):
        with pytest.raises(InvalidConfig) as refused:
            ask()
        assert refused.value.code == "config.invalid"
        assert not any(part in told(refused.value) for part in ("hunter", "two", "three", "zoe", "12", "db"))
    store.close()


@pytest.mark.parametrize("name", ["postgresql%3A%2F%2Fann%3Ahunter2%40db", "password%3Dhunter2", "a%40b"])
def test_a_database_whose_name_looks_like_a_connection_string_is_not_named(name: str) -> None:
    assert open_store(f"postgresql://db/{name}").address == "postgresql://db:5432/…"
    assert open_store(f"postgresql://db/?dbname={name}").address == "postgresql://db:5432/…"


def test_a_file_is_shown_with_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_store("sqlite:///jobs.db").address == f"sqlite:///{tmp_path.resolve()}/jobs.db"
    assert open_store("sqlite:///:memory:").address == "sqlite:///:memory:"


@pytest.mark.parametrize(
    "url", ["postgresql://ann:hun\0ter@db/shop", "postgresql://db/shop\0", "postgresql://db/\ud800"]
)
def test_a_url_that_libpq_would_cut_or_cannot_take_is_refused(url: str) -> None:
    store = open_store(url, patience=0)
    with pytest.raises(InvalidConfig, match="The PostgreSQL URL cannot be read") as refused:
        store.check_schema()
    assert "ter" not in told(refused.value)
    store.close()


@pytest.mark.parametrize("schema", ["", "x" * 64, "a\0b", "half\ud800"])
def test_a_schema_that_cannot_be_named_is_refused(schema: str) -> None:
    with pytest.raises(InvalidConfig, match="A schema's name") as refused:
        open_store("postgresql://db/shop", schema=schema)
    assert refused.value.__context__ is None
