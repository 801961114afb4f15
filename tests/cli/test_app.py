"""``--app module:app``: found in the working directory, or a clear line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.processes import run_cli

SHOP = """
from perdure import App
app = other = App("sqlite:///shop.db", imports=["parts"])
nothing = 7
class Box:
    inner = app
"""
PARTS = """
from perdure import Context
import shop
@shop.app.task(name="mail.send", queue="mail")
def send(to: str, n: int = 0) -> str:
    return to
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "parts.py").write_text(PARTS)
    (tmp_path / "broken.py").write_text("x = 1\nraise ValueError('two\\nlines')\n")
    (tmp_path / "lacking.py").write_text("import not_installed\n")
    return tmp_path


@pytest.mark.parametrize("path", ["shop:app", "shop", "shop:Box.inner"])
def test_the_app_is_found_in_the_working_directory(home: Path, path: str) -> None:
    ran = run_cli("--app", path, "enqueue", "mail.send", '{"to": "ann"}', cwd=home)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert run_cli("jobs", cwd=home, PERDURE_APP=path).stdout.splitlines()[1].split()[:3] == [
        ran.stdout.strip(),
        "ready",
        "mail.send",
    ]
    assert not (home / "perdure.db").exists()


def test_a_url_goes_before_the_one_of_the_app(home: Path) -> None:
    elsewhere = ("--url", "sqlite:///other.db")
    ran = run_cli("enqueue", "mail.send", '{"to": "ann"}', *elsewhere, cwd=home, PERDURE_APP="shop:app")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert not (home / "shop.db").exists()
    assert ran.stdout.strip() in run_cli("jobs", *elsewhere, cwd=home, PERDURE_APP="broken").stdout


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (
            "nowhere:app",
            "Cannot import 'nowhere': there is no module 'nowhere' in this directory or this Python.",
        ),
        (
            "shop.up:app",
            "Cannot import 'shop.up': there is no module 'shop.up' in this directory or this Python.",
        ),
        ("broken:app", "Cannot import 'broken': ValueError: two (broken.py, line 2)."),
        (
            "lacking:app",
            "Cannot import 'lacking': ModuleNotFoundError: No module named 'not_installed' (lacking.py, line 1).",
        ),
        ("shop:apq", "'apq' in shop does not exist. Did you mean 'app'?"),
        ("shop:nothing", "'nothing' in shop is not a perdure App."),
    ],
)
def test_an_app_that_cannot_be_had_is_one_line(home: Path, path: str, said: str) -> None:
    ran = run_cli("jobs", cwd=home, PERDURE_APP=path)
    assert ran.returncode == 2
    assert ran.stderr == f"Error: {said} [config.invalid]\n"
