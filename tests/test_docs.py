"""The documentation is true: generated pages match the code, and examples run as shown."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import App
from perdure.client.definition import define
from perdure.client.task import Handling
from perdure.request.filter import Wanted
from perdure.request.options import Asked
from perdure.store.schema.files import migrations
from tests import draw_errors, draw_states
from tests.conn.drivers import parts
from tests.harness import processes
from tests.test_errors import CLASSES, codes_in_the_package

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]


def run(script: Path) -> list[str]:
    """What a program prints that is run as a user would, in an empty directory."""
    ran = processes.run(script, cwd=script.parent)
    # Where no log is set up only failures for good are shown.
    assert all(re.match(r"Job \S+ of \S+ failed after ", line) for line in ran.stderr.splitlines()), (
        ran.stderr
    )
    assert ran.returncode == 0
    return ran.stdout.splitlines()


def blocks(page: str) -> list[str]:
    """The Python of a page, from top to bottom."""
    found = re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    assert len(found) == (ROOT / page).read_text().count("```python"), "a block that would not be run"
    return found


def write_program(page: str, home: Path) -> str:
    """Write what a page shows as ``program.py``, and its blocks that begin with ``# shop.py`` as that module."""
    found = blocks(page)
    module = [block for block in found if block.startswith("# shop.py\n")]
    program = "\n".join(block for block in found if not block.startswith("# shop.py\n"))
    (home / "shop.py").write_text("\n".join(module))
    (home / "program.py").write_text(program)
    return program


def defaults(function: Callable[..., object]) -> dict[str, object]:
    """Its options with their defaults."""
    return {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }


def promised(program: str) -> list[str]:
    """What the comments behind a print say it prints."""
    return re.findall(r"^ *print\(.*\)  # (.+)$", program, re.MULTILINE)


def test_the_page_about_states_is_drawn_from_the_table_of_transitions() -> None:
    assert draw_states.PAGE.read_text("utf-8") == draw_states.page(), "draw it anew: make docs"


def test_the_page_about_errors_is_drawn_from_the_tree_of_errors() -> None:
    assert draw_errors.PAGE.read_text("utf-8") == draw_errors.page(), "draw it anew: make docs"
    assert draw_errors.ADVICE.keys() == CLASSES.keys(), "no advice for what is gone"
    assert draw_errors.FINER.keys() == {code for _, code in codes_in_the_package()}


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/arguments.md",
        "docs/enqueue.md",
        "docs/getting-started.md",
        "docs/limiting.md",
        "docs/operating.md",
        "docs/retries.md",
        "docs/tasks.md",
        "docs/workers.md",
        "docs/workflows.md",
    ],
)
def test_the_python_of_a_page_runs_and_prints_what_it_says(page: str, tmp_path: Path) -> None:
    program = write_program(page, tmp_path)
    assert program.count("print(") == len(promised(program)) > 0, "a print without its promise"
    assert run(tmp_path / "program.py") == promised(program)


def test_the_readme_runs_on_postgresql_with_another_url_and_driver(tmp_path: Path, postgres_url: str) -> None:
    app = App(postgres_url)
    app.migrate()
    app.close()
    write_program("README.md", tmp_path)
    for file in (tmp_path / "shop.py", tmp_path / "program.py"):
        text = file.read_text().replace("sqlite:///shop.db", postgres_url)
        text = text.replace('sqlite3.connect("shop.db")', f'psycopg.connect("{postgres_url}")')
        file.write_text(text.replace("import sqlite3", "import psycopg"))
    assert run(tmp_path / "program.py") == promised((tmp_path / "program.py").read_text())
    assert not (tmp_path / "shop.db").exists()


def test_every_condition_is_in_the_page_about_operating() -> None:
    rows = re.findall(r"^\| (`.+?) \|", (ROOT / "docs/operating.md").read_text(), re.MULTILINE)
    told = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert [name for name in Wanted.__annotations__ if name not in told] == []


def test_every_error_of_a_move_is_in_the_page_about_moving() -> None:
    page = (ROOT / "docs" / "moving.md").read_text()
    codes = {code for _, code in codes_in_the_package() if code.startswith("move.")}
    assert codes
    assert {code for code in codes if f"| `{code}` |" not in page} == set()


def test_the_drawings_of_workflows_are_those_of_the_builder() -> None:
    program, space = blocks("docs/workflows.md")[0], dict[str, Any]()
    exec(program, space)
    (drawn,) = re.findall(
        r"^```mermaid\n(.*?)^```$", (ROOT / "docs/workflows.md").read_text(), re.MULTILINE | re.DOTALL
    )
    assert space["flow"].to_mermaid().endswith(drawn)


DJANGO = """
import django
from django.conf import settings
from tests.conn.drivers import django_database

settings.configure(DATABASES={{"default": django_database("{url}")}})
django.setup()
"""


def test_the_page_about_transactions_runs_and_prints_what_it_says(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, sys.path)]))
    for url in (postgres_url, f"sqlite:///{tmp_path / 'shop.db'}"):
        app = App(url)
        app.migrate()
        app.close()
    program = "\n".join(blocks("docs/transactions.md"))
    host = postgres_url.removeprefix("postgresql://")
    script = tmp_path / "program.py"
    script.write_text(DJANGO.format(url=postgres_url) + program.replace("localhost/shop", host))
    printed = [line for line in run(script) if not line.startswith("confirmed")]
    assert printed == promised(program)
    assert len(printed) == 4


DEPLOY = """
import sys
from pathlib import Path
import django
from django.core.management import call_command
django.setup()
call_command("makemigrations", "orders")
Path("orders/migrations/0002_perdure.py").write_text(sys.argv[1])
call_command("migrate")
call_command("makemigrations", "--check")
call_command("save_tasks")
"""
"""The commands in one process: half of the time of each is that until Django is there."""


def test_the_project_of_the_page_about_django_runs(tmp_path: Path, url: str) -> None:
    if url.startswith("sqlite"):
        env = {"DJANGO_SETTINGS_MODULE": "shop.sqlite_settings"}
    else:
        env = {f"SHOP_DB_{name.upper()}": str(value) for name, value in parts(url).items()}
        name = env["SHOP_DB_DATABASE"]
        env |= {"SHOP_DB_NAME": name, "SHOP_DB_TEST_NAME": f"{name}_test"}
        env["DJANGO_SETTINGS_MODULE"] = "shop.settings"
    files = {block.partition("\n")[0].removeprefix("# "): block for block in blocks("docs/django.md")}
    migration = files.pop("orders/migrations/0002_perdure.py")
    assert f"to={migrations('sqlite')[-1].version})" in migration, "name the newest version"

    def succeeds(*command: str) -> str:
        ran = processes.run(*command, cwd=tmp_path, env=env)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout + ran.stderr

    def manage(*command: str) -> str:
        return succeeds("-m", "django", *command)

    write_project(tmp_path, files)
    assert "No changes" in succeeds("-c", DEPLOY, migration)
    manage("shell", "-c", "from orders.checkout import place_order; place_order('Ann')")
    succeeds("-m", "perdure", "worker", "shop.worker:app", "--burst")
    shown = (
        "from orders.models import Order; print(Order.objects.filter(confirmed=True, shipped=True).count())"
    )
    assert manage("shell", "-c", shown).splitlines()[-1] == "1"
    for _ in range(2):  # the first run must leave nothing in the way of the next
        assert "Ran 3 tests" in manage("test", "--noinput")


def write_project(home: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        file = home / name
        file.parent.mkdir(parents=True, exist_ok=True)
        for package in (file.parent, *file.parent.parents):
            if package == home:
                break
            (package / "__init__.py").touch()
        file.write_text(text)


def test_every_public_name_is_documented() -> None:
    """In a sentence or in code that uses it: an import alone explains nothing."""
    pages = sorted(ROOT.glob("docs/*.md"))
    text = "\n".join(page.read_text() for page in pages)
    code = [*re.findall(r"`([^`\n]+)`", text), *(block for page in pages for block in blocks(str(page)))]
    used = [line for part in code for line in part.splitlines() if not line.startswith("from ")]
    assert [name for name in perdure.__all__ if name not in re.findall(r"\w+", "\n".join(used))] == []


def option_rows(page: str, heading: str) -> dict[str, str]:
    """The options in the table of a section, with their default or, if the table has none, what they mean."""
    _, _, rest = (ROOT / "docs" / page).read_text().partition(f"\n## {heading}\n")
    rows = [line.split(" | ") for line in rest.partition("\n## ")[0].splitlines() if line.startswith("| `")]
    return {name: cells[1].strip("`") for cells in rows for name in re.findall(r"`(\w+)`", cells[0])}


@pytest.mark.parametrize(
    ("page", "heading", "options"),
    [
        ("getting-started.md", "Choose a database", defaults(App.__init__)),
        ("tasks.md", "Options", {"aliases": (), **defaults(define), **Handling._field_defaults}),
        ("enqueue.md", "Options", dict.fromkeys(Asked.__annotations__)),
        ("workers.md", "Options", defaults(App.run_worker)),
    ],
)
def test_every_option_has_a_row_with_its_default(
    page: str, heading: str, options: Mapping[str, object]
) -> None:
    rows = option_rows(page, heading)
    assert rows.keys() == options.keys()
    for name, default in options.items():
        if isinstance(default, str):
            assert rows[name] == f'"{default}"'
        elif type(default) in (int, float):
            assert float(rows[name]) == default


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_every_example_runs_and_leaves_nothing_behind(tmp_path: Path, example: Path) -> None:
    script = tmp_path / example.name
    script.write_text(example.read_text())
    assert run(script)
    assert list(tmp_path.iterdir()) == [script]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_to_a_heading_of_it(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", page.read_text())
    assert [link for link, _ in links if not (page.parent / link).exists()] == []
    for link, heading in links:
        assert not heading or heading in headings(page.parent / link if link else page)


def headings(page: Path) -> list[str]:
    """As GitHub spells them in a link."""
    found = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in found]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_is_named_exists(page: Path) -> None:
    named = set(re.findall(r"(?<![\w/.])[\w/*]+\.(?:py|sql)\b", page.read_text()))
    homes = [ROOT, *(ROOT / home for home in ("src/perdure", "src/perdure/store", "docs")), page.parent]
    shown = {
        "manage.py",
        *re.findall(r"^# (\S+\.py)$", page.read_text(), re.MULTILINE),
    }  # every Django project has one
    assert {name for name in named - shown if not any([*home.glob(name)] for home in homes)} == set()


def test_every_decision_is_in_the_index() -> None:
    index = (ROOT / "docs" / "decisions" / "README.md").read_text()
    pages = sorted(page.name for page in ROOT.glob("docs/decisions/0*.md"))
    assert re.findall(r"^\| \[\d+\]\((.+?)\)", index, re.MULTILINE) == pages
