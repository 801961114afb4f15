"""``perdure move``: what it prints, and how it fails."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path

import pytest

from perdure import App
from perdure.cli.move import _bar
from tests.cli.shop import run
from tests.moves import large_store


@pytest.fixture
def target(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'new.db'}"


def test_it_tells_what_was_moved_and_that_it_was(url: str, target: str) -> None:
    large_store.make(url, 10)
    result = run("move", url, target)
    assert (result.exit_code, result.stderr) == (0, "")
    assert re.search(r"^job +10  [0-9a-f]{64}$", result.stdout, re.MULTILINE)
    assert "rows, equal on both sides. The source is closed for writing." in result.stdout
    again = run("move", url, target)
    assert (again.exit_code, again.stdout) == (0, "The move was already finished: there was nothing to do.\n")
    checked = run("check", "--url", url)
    assert checked.exit_code == 1
    assert checked.stderr == f"Error: The jobs of this database were moved to {target}. [store.moved]\n"
    assert json.loads(run("check", "--url", url, "--json").stdout)["schema"]["code"] == "store.moved"
    assert run("check", "--url", target).exit_code == 0


def test_as_json(url: str, target: str) -> None:
    large_store.make(url, 10)
    moved = json.loads(run("move", url, target, "--json").stdout)
    assert moved["moved"] is True
    assert moved["tables"]["job"]["rows"] == 10
    assert len(moved["tables"]["job"]["sha256"]) == 64
    assert json.loads(run("move", url, target, "--json").stdout) == {"moved": False, "tables": {}}


def test_a_move_can_be_given_up(url: str, target: str) -> None:
    large_store.make(url, 10)
    assert run("move", url, "--abandon").stdout == "No move was under way.\n"
    assert json.loads(run("move", url, "--abandon", "--json").stdout) == {"abandoned": False}


def test_a_target_can_be_kept(url: str) -> None:
    large_store.make(url, 10)
    assert run("move", url, "--keep").stdout == "No move was under way.\n"
    assert json.loads(run("move", url, "--keep", "--json").stdout) == {"kept": False}
    assert run("move", url, url, "--keep").exit_code == 2


def test_a_live_worker_is_in_its_way(url: str, target: str) -> None:
    with closing(App(url)) as app:
        app.migrate()
        app.operations.register("w", name="ann:1", lease=60_000_000)
    result = run("move", url, target)
    assert result.exit_code == 1
    assert "ann:1" in result.stderr
    assert result.stderr.endswith("[move.workers]\n")


def test_a_terminal_gets_a_bar_for_each_pass(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with _bar(shown=True) as progress:
        for what in ("copy", "compare"):
            progress(what, 5, 10)
            progress(what, 10, 10)
    told = capsys.readouterr().err
    assert re.findall(r"(copy|compare) .* (\d+)%", told.replace("\r", "\n")) == [
        (what, per_cent) for what in ("copy", "compare") for per_cent in ("0", "50", "100")
    ]
    assert told.count("\n") == 2


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["sqlite:///none.db"], 2),
        (["none.db", "sqlite:///other.db"], 2),
        (["sqlite:///none.db", "sqlite:///other.db"], 4),
        (["postgresql://localhost:1/none", "sqlite:///other.db"], 3),
    ],
)
def test_how_it_fails(args: list[str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("move", *args)
    assert result.exit_code == code
    assert result.stderr.startswith("Error: ")
    assert list(tmp_path.iterdir()) == []


def test_urls_come_from_the_environment(url: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    large_store.make(url, 10)
    monkeypatch.setenv("OLD_URL", url)
    monkeypatch.setenv("NEW_URL", target)
    moved = run("move", "env:OLD_URL", "env:NEW_URL")
    assert (moved.exit_code, moved.stderr) == (0, "")
    assert run("check", "--url", "env:NEW_URL").exit_code == 0
    assert run("move", "env:OLD_URL", "env:NEW_URL", "--abandon").exit_code == 1, "it is over"
    assert run("move", "env:NEW_URL", "--keep").exit_code == 0


@pytest.mark.parametrize("args", [["move", "env:NONE", "sqlite:///x.db"], ["jobs", "--url", "env:NONE"]])
def test_a_variable_that_is_not_there_is_named(args: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NONE", raising=False)
    ran = run(*args)
    assert ran.exit_code == 2
    assert "the environment variable 'NONE' is not set" in ran.stderr
