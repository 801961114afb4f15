"""An app is set up without a database: options are checked at once, the URL is found at the first use."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import App
from perdure.errors import InvalidConfig, InvalidOption, InvalidTask, PerdureError, UnknownTask


@pytest.mark.parametrize(
    ("environment", "file"),
    [
        ({}, "perdure.db"),
        ({"PERDURE_URL": "sqlite:///own.db"}, "own.db"),
        ({"DATABASE_URL": "sqlite:///shop.db"}, "shop.db"),
        ({"DATABASE_URL": "mysql://localhost/shop"}, "perdure.db"),
        ({"PERDURE_URL": "sqlite:///own.db", "DATABASE_URL": "sqlite:///shop.db"}, "own.db"),
        ({"PERDURE_URL": "", "DATABASE_URL": "sqlite:///shop.db"}, "shop.db"),
    ],
)
def test_the_url_comes_from_the_environment_at_the_first_use(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, environment: dict[str, str], file: str
) -> None:
    app = App()
    monkeypatch.chdir(tmp_path)
    for name in ("PERDURE_URL", "DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert app.list_jobs() == []
    app.close()
    assert (tmp_path / file).exists()


def test_a_url_that_was_given_needs_no_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sqlite_url: str
) -> None:
    monkeypatch.setenv("PERDURE_URL", "sqlite:///own.db")
    monkeypatch.chdir(tmp_path)
    app = App(sqlite_url)
    app.list_jobs()
    app.close()
    assert not (tmp_path / "own.db").exists()


def test_its_modules_are_imported_at_the_first_use_and_bring_their_tasks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sqlite_url: str
) -> None:
    (tmp_path / "shop_app.py").write_text(
        f"from perdure import App\napp = App({sqlite_url!r}, imports=['shop_jobs'])\n"
    )
    (tmp_path / "shop_jobs.py").write_text(
        "from shop_app import app\n@app.task(queue='mail')\ndef send(to: str) -> None: ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    from shop_app import app  # type: ignore[import-not-found]

    assert "shop_jobs" not in sys.modules
    job = app.enqueue("shop_jobs.send", {"to": "ann@example.com"})
    assert (job.queue, list(app.tasks)) == ("mail", ["shop_jobs.send"])
    app.close()
    for module in ("shop_app", "shop_jobs"):
        del sys.modules[module]


@pytest.mark.parametrize(
    ("option", "wrong"),
    [
        ("imports", "shop.jobs"),
        ("imports", [""]),
        ("schema", ""),
        ("schema", "x" * 64),
        ("schema", "a\0b"),
        ("keep_keys_for", -1),
        ("keep_keys_for", "7 days"),
        ("lease", 0),
        ("lease", timedelta(seconds=-1)),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_at_once(option: str, wrong: Any) -> None:
    with pytest.raises(InvalidOption, match=f"^{option}"):
        App(**{option: wrong})


@pytest.mark.parametrize(
    "url", ["jobs.db", "sqlite:jobs.db", "sqlite://jobs.db", "mysql://root:hunter2@localhost/x", "hunter2"]
)
def test_a_url_that_is_none_is_refused_without_being_quoted(url: str) -> None:
    with pytest.raises(InvalidConfig) as refusal:
        App(url).list_jobs()
    assert "hunter2" not in str(refusal.value)


def test_a_value_that_does_not_exist_is_refused(sqlite_url: str) -> None:
    options: Any = {"synchronous": "off"}
    with pytest.raises(PerdureError):
        App(sqlite_url, **options).list_jobs()


def test_an_empty_url_is_not_taken_for_none() -> None:
    with pytest.raises(InvalidConfig, match="empty"):
        App("")


@pytest.mark.parametrize(
    ("url", "dialect"),
    [
        ("postgresql://nobody@nowhere.invalid/nothing", "postgres"),
        ("postgres://nobody@nowhere.invalid/nothing", "postgres"),
        ("postgresql+psycopg://nobody@nowhere.invalid/nothing", "postgres"),
        ("postgres+asyncpg://nobody@nowhere.invalid/nothing", "postgres"),
        ("sqlite:///jobs.db", "sqlite"),
        ("sqlite+aiosqlite:///jobs.db", "sqlite"),
    ],
)
@pytest.mark.parametrize("where", ["url", "PERDURE_URL", "DATABASE_URL"])
def test_a_url_may_name_a_driver_wherever_it_is_given(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str, url: str, dialect: str
) -> None:
    for name in ("PERDURE_URL", "DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    if where != "url":
        monkeypatch.setenv(where, url)
    with App(url if where == "url" else None, listen_url=url) as app:
        assert app.store.dialect == dialect
        assert app.store.address.startswith(("postgresql://nowhere.invalid:5432/nothing", "sqlite:////"))
    assert caplog.records == []


@pytest.mark.parametrize("url", ["sqlite:shop.db", "sqlite://shop.db", "postgresql:shop", "sqlite+x:shop.db"])
def test_a_url_of_ours_in_the_environment_that_cannot_be_read_is_refused(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.delenv("PERDURE_URL", raising=False)
    monkeypatch.setenv("DATABASE_URL", url)
    with pytest.raises(InvalidConfig, match="must begin with"):
        App().list_jobs()


def test_another_kind_of_database_in_the_environment_is_ignored_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PERDURE_URL", raising=False)
    monkeypatch.setenv("DATABASE_URL", "mysql://root:hunter2@localhost/shop")
    with App() as app:
        app.list_jobs()
        app.list_jobs()
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    for word in ("$DATABASE_URL", "$PERDURE_URL", str(tmp_path / "perdure.db")):
        assert word in said
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize("chosen", [{"PERDURE_URL": "sqlite:///own.db"}, {}])
def test_a_program_that_names_its_database_is_not_warned_about_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, chosen: dict[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PERDURE_URL", raising=False)
    for name, value in {"DATABASE_URL": "mysql://localhost/shop", **chosen}.items():
        monkeypatch.setenv(name, value)
    with App(None if chosen else "sqlite:///own.db") as app:
        app.list_jobs()
    assert caplog.records == []


def test_a_generator_is_no_task() -> None:
    with pytest.raises(InvalidTask, match="generator"):

        @App("sqlite:///:memory:").task(name="g")
        def numbers() -> Iterator[int]:
            yield 1


def test_a_name_in_the_place_of_a_function_is_refused() -> None:
    app: Any = App("sqlite:///:memory:")
    with pytest.raises(InvalidTask, match="name="):
        app.task("mail.send")


def test_a_refusal_names_the_task() -> None:
    with App("sqlite:///:memory:") as app, pytest.raises(UnknownTask, match=r"mail\.send"):
        app.enqueue("mail.send", {})


def test_a_request_shows_no_arguments() -> None:
    @App("sqlite:///:memory:").task(name="mail.send")
    def send(to: str) -> None: ...

    assert repr(send.job("ann@example.org")) == "<JobRequest mail.send>"
