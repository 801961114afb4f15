"""Which jobs a command is about: the options that are the conditions of ``app.list_jobs``."""

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
    click.option("--error-code", metavar="CODE", help="Of the last attempt, such as http.503."),
    click.option("--text", help="Somewhere in the arguments, letter by letter."),
    _time("--created-after", "2026-03-01T12:00:00+01:00, or 2h for two hours ago (s, m, h, d)."),
    _time("--created-before", "Earlier than this."),
    _time("--finished-after", "Ended then or later."),
    _time("--finished-before", "Ended earlier than this."),
)


def conditions(function: F) -> F:
    """All of them must hold; those that were not given are None."""
    for option in reversed(OPTIONS):
        function = option(function)
    return function
