"""The options that choose jobs: the conditions of ``app.list_jobs``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from perdure.cli import typed
from perdure.model.visible_state import VISIBLE_STATES

F = TypeVar("F", bound=Callable[..., Any])


def _time(name: str, help: str) -> Callable[[F], F]:
    return click.option(name, metavar="TIME", callback=typed.parse_time_or_ago, help=help)


OPTIONS = (
    click.option("--queue"),
    click.option("--task"),
    click.option("--state", metavar="STATE", callback=typed.state, help=", ".join(VISIBLE_STATES) + "."),
    click.option("--tenant"),
    click.option("--tag", help="One of its tags."),
    click.option("--key", "idempotency_key", help="The idempotency key."),
    click.option("--unique-key"),
    click.option(
        "--error-code", metavar="CODE", help="The error code of the last attempt, such as http.503."
    ),
    click.option("--text", help="Text that the arguments contain; upper and lower case differ."),
    _time("--created-after", "2026-03-01T12:00:00+01:00, or 2h for two hours ago (s, m, h, d)."),
    _time("--created-before", "Created before this time."),
    _time("--finished-after", "Ended at this time or later."),
    _time("--finished-before", "Ended before this time."),
)


def conditions(function: F) -> F:
    """Add the conditions as options.

    A job must meet all conditions that are given. Conditions that are not given are None.
    """
    for option in reversed(OPTIONS):
        function = option(function)
    return function
