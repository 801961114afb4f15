"""Rules of the house, kept by a test rather than by memory.

Each rule reads one file and says what is wrong with it. Each comes with a file that breaks it and one that
only looks as if, so that a rule which can no longer fail fails here.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = "src/perdure"

MODULE_LINES = 400
FUNCTION_LINES = 60

DRIVERS = {
    "sqlite3",
    "pysqlite3",
    "apsw",
    "aiosqlite",
    "psycopg",
    "psycopg2",
    "psycopg_pool",
    "pg8000",
    "asyncpg",
    "sqlalchemy",
    "django",
}
UNSAFE_FORMATS = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve"}
CLOCKS = {
    "time": {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"},
    "datetime": {"now", "utcnow", "today"},
    "date": {"today"},
}

# Written in two halves, or this file would break the rule it states. After a word or a dot it is part of a
# longer path, such as src/home/, and means no machine.
MACHINE_PATH = re.compile(r"(?<![\w.~-])/" + r"(work|root|home)/[\w.]")


class Source(NamedTuple):
    """One text file, by its path from the root of the checkout."""

    path: PurePosixPath
    text: str

    @property
    def is_module(self) -> bool:
        return self.path.suffix == ".py" and self.path.is_relative_to(PACKAGE)

    def is_in(self, *packages: str) -> bool:
        return any(self.path.is_relative_to(f"{PACKAGE}/{package}") for package in packages)

    def nodes(self) -> Iterator[ast.AST]:
        return ast.walk(ast.parse(self.text))


def modules_are_short(source: Source) -> Iterator[str]:
    lines = len(source.text.splitlines())
    if source.is_module and lines > MODULE_LINES:
        yield f"{lines} lines; split it at {MODULE_LINES}"


def functions_are_short(source: Source) -> Iterator[str]:
    if not source.is_module:
        return
    for node in source.nodes():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES:
                yield f"{node.name} has {lines} lines; the limit is {FUNCTION_LINES}"


def only_stores_import_drivers(source: Source) -> Iterator[str]:
    if source.is_module and not source.is_in("store", "contrib"):
        for name in sorted(imported(source) & DRIVERS):
            yield f"imports {name}; only store/ and contrib/ may"


def nothing_is_pickled(source: Source) -> Iterator[str]:
    if source.is_module:
        for name in sorted(imported(source) & UNSAFE_FORMATS):
            yield f"imports {name}: reading such data runs it"


def types_are_not_ignored(source: Source) -> Iterator[str]:
    if source.is_module:
        for number, line in enumerate(source.text.splitlines(), 1):
            if re.search(r"#\s*(type|pyright|mypy)\s*:\s*ignore", line):
                yield f"line {number} ignores the type checker"


def rules_take_time_as_an_argument(source: Source) -> Iterator[str]:
    if not (source.is_module and source.is_in("model", "ops")):
        return
    for node in source.nodes():
        match node:
            case ast.Attribute(value=ast.Name(id=owner) | ast.Attribute(attr=owner), attr=name):
                found = name in CLOCKS.get(owner, ())
            case ast.ImportFrom(module="time", names=names):
                found = any(alias.name in CLOCKS["time"] for alias in names)
            case _:
                found = False
        if found:
            yield f"line {getattr(node, 'lineno', 0)} reads a clock: take the time as an argument"


def no_path_of_one_machine(source: Source) -> Iterator[str]:
    for number, line in enumerate(source.text.splitlines(), 1):
        if match := MACHINE_PATH.search(line):
            yield f"line {number} names {match.group()}…, which exists on one machine only"


def commands_print_in_one_place(source: Source) -> Iterator[str]:
    if not (source.is_module and source.is_in("cli")) or source.path.name == "output.py":
        return
    for node in source.nodes():
        match node:
            case ast.Attribute(value=ast.Name(id="click"), attr="echo" | "secho" | "echo_via_pager" as name):
                yield f"line {node.lineno} calls click.{name}: use cli/output.py, which makes text harmless"
            case ast.Call(func=ast.Name(id="print")) | ast.ImportFrom(module="click"):
                yield f"line {node.lineno}: print with cli/output.py, which makes text harmless"
            case ast.Attribute(value=ast.Attribute(attr="stdout" | "stderr"), attr="write"):
                yield f"line {node.lineno} writes to a stream: use cli/output.py, which makes text harmless"


def commands_go_through_the_app(source: Source) -> Iterator[str]:
    # perdure bench measures bare SQL beside the app.
    if not (source.is_module and source.is_in("cli")) or source.is_in("cli/bench"):
        return
    for node in source.nodes():
        match node:
            case ast.Attribute(attr="store"):
                yield f"line {node.lineno} uses the store: read through app.views"
            case ast.ImportFrom(module=str(name)) if f"{name}.".startswith("perdure.ops."):
                yield f"line {node.lineno} imports {name}: read through app.views"


def only_the_app_writes_its_privates(source: Source) -> Iterator[str]:
    if not source.is_module or source.path.name == "app.py":
        return
    for node in source.nodes():
        match node:
            case ast.Attribute(value=owner, attr=name, ctx=ast.Store() | ast.Del()):
                found = name.startswith("_") and is_app(owner)
            case ast.Call(func=ast.Name(id="vars" | "setattr" | "delattr"), args=[owner, *_]):
                found = is_app(owner)
            case _:
                found = False
        if found:
            yield f"line {getattr(node, 'lineno', 0)} changes an app from outside: give App a method for it"


def is_app(node: ast.AST) -> bool:
    """Whether an expression is an app, by the names that apps have in this package."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in ("app", "_app", "theirs")
    return False


def imported(source: Source) -> set[str]:
    """The top-level packages a module imports, wherever in it and in whichever way."""
    names: set[str] = set()
    for node in source.nodes():
        match node:
            case ast.Import(names=aliases):
                names.update(alias.name for alias in aliases)
            case ast.ImportFrom(module=str(name), level=0):
                names.add(name)
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                names.add(name)
    return {name.partition(".")[0] for name in names}


class Rule(NamedTuple):
    check: Callable[[Source], Iterator[str]]
    broken_by: Source
    kept_by: Source


def sample(path: str, text: str) -> Source:
    return Source(PurePosixPath(PACKAGE, path), text)


def function(lines: int) -> str:
    return "async def f():\n" + "    pass\n" * (lines - 1)


RULES = [
    Rule(
        modules_are_short,
        sample("app.py", "x = 1\n" * (MODULE_LINES + 1)),
        sample("app.py", "x = 1\n" * MODULE_LINES),
    ),
    Rule(
        functions_are_short,
        sample("app.py", function(FUNCTION_LINES + 1)),
        sample("app.py", function(FUNCTION_LINES) * 2),
    ),
    Rule(
        only_stores_import_drivers,
        sample("ops/claim.py", "def f():\n    from psycopg.rows import dict_row\n"),
        sample("store/postgres/store.py", "import psycopg\n"),
    ),
    Rule(
        only_stores_import_drivers,
        sample("app.py", "import importlib\nimportlib.import_module('sqlite3')\n"),
        sample("app.py", "from perdure.store import sqlite3\nfrom . import psycopg\n"),
    ),
    Rule(
        nothing_is_pickled,
        sample("store/sqlite/store.py", "import json, pickle\n"),
        sample("store/sqlite/store.py", "# Never pickle.\nimport json\n"),
    ),
    Rule(
        types_are_not_ignored,
        sample("app.py", "x = 1\ny = f(x)  # type: ignore[arg-type]\n"),
        sample("app.py", "# Some types ignore the difference.\n"),
    ),
    Rule(
        rules_take_time_as_an_argument,
        sample("ops/claim.py", "import datetime\nnow = datetime.datetime.now(datetime.UTC)\n"),
        sample("store/sqlite/store.py", "import datetime\nnow = datetime.datetime.now(datetime.UTC)\n"),
    ),
    Rule(
        rules_take_time_as_an_argument,
        sample("model/backoff.py", "from time import time_ns\n"),
        sample("model/backoff.py", "import datetime\ndef f(now): return now.time(), datetime.time(1)\n"),
    ),
    Rule(
        commands_print_in_one_place,
        sample("cli/jobs.py", "import click\nclick.echo(name)\n"),
        sample("cli/output.py", "import click\nclick.echo(name)\n"),
    ),
    Rule(
        commands_print_in_one_place,
        sample("cli/jobs.py", "import sys\nsys.stderr.write(name)\n"),
        sample("cli/jobs.py", "from perdure.cli.output import say\nsay(name)\n"),
    ),
    Rule(
        commands_go_through_the_app,
        sample("cli/jobs.py", "app.store.perform(list_tasks)\n"),
        sample("cli/bench/bare.py", "app.store.perform(list_tasks)\n"),
    ),
    Rule(
        commands_go_through_the_app,
        sample("cli/jobs.py", "if TYPE_CHECKING:\n    from perdure.ops.browse import Traces\n"),
        sample("cli/jobs.py", "from perdure.operations import x\nstore = app.views.jobs()\n"),
    ),
    Rule(
        only_the_app_writes_its_privates,
        sample("testing/block.py", "self._app._url, x = url, 1\n"),
        sample("testing/block.py", "self._app.database = x\nself._url = app._url\n"),
    ),
    Rule(
        only_the_app_writes_its_privates,
        sample("testing/block.py", "vars(app).pop('operations')\n"),
        sample("client/job.py", "vars(self).pop('row')\n"),
    ),
    Rule(
        no_path_of_one_machine,
        Source(PurePosixPath("README.md"), "Run it in /" + "home/ann/jobs.\n"),
        Source(PurePosixPath("README.md"), "See src/home/page.py and https://example.com/home/x.\n"),
    ),
]


def text_files() -> Iterator[Source]:
    """Every text file that is, or is about to be, under version control."""
    # The checkout may belong to another user than the one who runs the tests.
    git = ["git", "-c", "safe.directory=*", "-C", str(ROOT)]
    command = [*git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for name in sorted(set(listed.split("\0")) - {""}):
        path = ROOT / name
        if not path.is_file():
            continue
        content = path.read_bytes()
        if b"\0" not in content:
            yield Source(PurePosixPath(name), content.decode())


@pytest.fixture(scope="module")
def sources() -> list[Source]:
    return list(text_files())


@pytest.mark.parametrize("check", {rule.check: None for rule in RULES}, ids=lambda check: check.__name__)
def test_rule_is_kept(check: Callable[[Source], Iterator[str]], sources: list[Source]) -> None:
    assert [f"{source.path}: {wrong}" for source in sources for wrong in check(source)] == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.check.__name__)
def test_rule_can_be_broken(rule: Rule) -> None:
    assert list(rule.check(rule.broken_by))
    assert not list(rule.check(rule.kept_by))


def test_the_rules_see_the_package(sources: list[Source]) -> None:
    assert any(source.is_module for source in sources)


IMPORT_EVERYTHING = """
import os, pkgutil
from importlib import import_module

read = []
find = type(os.environ).__getitem__

def noting(environ, name):
    if name.startswith("PERDURE_"):
        read.append(name)
    return find(environ, name)

type(os.environ).__getitem__ = noting
import perdure

for module in pkgutil.walk_packages(perdure.__path__, "perdure."):
    if not module.name.endswith("__main__"):
        import_module(module.name)
print(*read, end="")
"""


def test_importing_reads_no_variable_of_the_environment() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", IMPORT_EVERYTHING], capture_output=True, text=True, check=True
    )
    assert ran.stdout == ""


@pytest.mark.parametrize(
    "name", ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "src/perdure/py.typed"]
)
def test_what_a_reader_looks_for_is_there(name: str, sources: list[Source]) -> None:
    assert PurePosixPath(name) in {source.path for source in sources}
