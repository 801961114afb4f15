"""The documentation tells the truth: what is drawn is drawn from the code, what is shown runs as shown."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from perdure import App
from tests import draw_states

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]


def run(script: Path) -> list[str]:
    """What a program prints that is run as a user would, in an empty directory."""
    ran = subprocess.run(
        [sys.executable, "-W", "error", str(script)], cwd=script.parent, capture_output=True, text=True
    )
    assert ran.stderr == ""
    assert ran.returncode == 0
    return ran.stdout.splitlines()


def readme() -> str:
    """The Python of the README, from top to bottom."""
    return "\n".join(
        re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    )


def promised(program: str) -> list[str]:
    """What the comments behind a print say it prints."""
    return re.findall(r"^print\(.*\)  # (.+)$", program, re.MULTILINE)


def test_the_page_about_states_is_drawn_from_the_table_of_transitions() -> None:
    assert draw_states.PAGE.read_text("utf-8") == draw_states.page(), "draw it anew: make docs"


def test_the_readme_runs_and_prints_what_it_says(tmp_path: Path) -> None:
    script = tmp_path / "readme.py"
    script.write_text(readme())
    printed = run(script)
    assert len(promised(readme())) == len(printed) == 4
    assert all(line.endswith(end) for line, end in zip(printed, promised(readme()), strict=True))
    assert (tmp_path / "jobs.db").exists()


def test_the_readme_runs_on_postgresql_with_another_url_and_driver(tmp_path: Path, postgres_url: str) -> None:
    app = App(postgres_url)
    app.migrate()
    app.close()
    program = readme().replace("sqlite:///jobs.db", postgres_url)
    program = program.replace('sqlite3.connect("jobs.db")', f'psycopg.connect("{postgres_url}")')
    script = tmp_path / "readme.py"
    script.write_text(program.replace("import sqlite3", "import psycopg"))
    printed = run(script)
    assert all(line.endswith(end) for line, end in zip(printed, promised(readme()), strict=True))
    assert not (tmp_path / "jobs.db").exists()


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_every_example_runs_and_leaves_nothing_behind(tmp_path: Path, example: Path) -> None:
    script = tmp_path / example.name
    script.write_text(example.read_text())
    assert run(script)
    assert list(tmp_path.iterdir()) == [script]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_file_leads_to_one(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_is_named_exists(page: Path) -> None:
    named = set(re.findall(r"(?<![\w/.])[\w/*]+\.(?:py|sql)\b", page.read_text()))
    homes = [ROOT, *(ROOT / home for home in ("src/perdure", "src/perdure/store", "docs")), page.parent]
    assert {name for name in named if not any([*home.glob(name)] for home in homes)} == set()


def test_every_decision_is_in_the_index() -> None:
    index = (ROOT / "docs" / "decisions" / "README.md").read_text()
    pages = sorted(page.name for page in ROOT.glob("docs/decisions/0*.md"))
    assert re.findall(r"^\| \[\d+\]\((.+?)\)", index, re.MULTILINE) == pages
