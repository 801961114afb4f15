"""The public names of ``perdure``, and the cost of importing it."""

from __future__ import annotations

import ast
import inspect
from importlib import import_module

import pytest

import perdure
from tests.harness.processes import run_script

PUBLIC = [
    "App",
    "Task",
    "Job",
    "JobEvent",
    "Middleware",
    "Workflow",
    "Step",
    "Gate",
    "StartedWorkflow",
    "WorkflowStep",
    "chain",
    "group",
    "Context",
    "CONTEXT",
    "Backoff",
    "Retry",
    "Snooze",
    "Throttle",
    "Fatal",
    "Cancel",
    "Continue",
    "PerdureError",
    "BadArguments",
    "IdempotencyConflict",
    "JobFailed",
    "JobCanceled",
    "JobGone",
    "WaitTimeout",
    "WorkerDied",
    "WorkflowFailed",
    "WorkflowCanceled",
]


def test_the_public_names_are_these() -> None:
    assert perdure.__all__ == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_the_thing_its_module_defines(name: str) -> None:
    home = import_module(f"perdure.{perdure._HOMES[name]}")
    assert getattr(perdure, name) is getattr(home, name)


def test_type_checkers_see_the_same_names_in_the_same_modules() -> None:
    tree = ast.parse(inspect.getsource(perdure))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    typed = {
        alias.asname: (node.module or "").removeprefix("perdure.")
        for node in imports
        for alias in node.names
        if alias.asname is not None
    }
    assert typed == perdure._HOMES
    assert sorted(typed) == sorted(PUBLIC)


def test_a_name_that_is_not_there_is_missed_as_usual() -> None:
    with pytest.raises(AttributeError, match=r"^module 'perdure' has no attribute 'Jobs'$"):
        perdure.Jobs  # noqa: B018


def test_the_names_can_be_looked_up_without_being_loaded() -> None:
    assert set(dir(perdure)) == {*PUBLIC, "__version__"}


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import perdure", "asyncio msgspec sqlite3 psycopg click perdure.app perdure.errors"),
        ("from perdure import PerdureError", "asyncio msgspec sqlite3 psycopg click perdure.app"),
        ("from perdure import App; App('sqlite:///x.db')", "asyncio sqlite3 psycopg click"),
        ("from perdure import App; App('postgresql://x/y')", "asyncio sqlite3 psycopg click"),
    ],
)
def test_an_import_loads_no_more_than_it_needs(statement: str, unwanted: str) -> None:
    program = f"{statement}; import sys; print(*sorted(set('{unwanted}'.split()) & sys.modules.keys()))"
    assert run_script(program).split() == []
