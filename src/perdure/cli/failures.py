"""The failures of commands: one line on stderr, and an exit code that scripts can rely on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from perdure.cli.output import one_line

if TYPE_CHECKING:
    from perdure.errors import PerdureError


@contextmanager
def printable_errors() -> Iterator[None]:
    """Make click's error messages safe to print, on one line.

    The messages may quote perdure's messages and the user's input.
    """
    try:
        yield
    except click.ClickException as error:
        vars(error)["message"] = one_line(error.message)  # click declares the attribute Final
        raise


class Failure(click.ClickException):
    """Not found, or refused."""

    exit_code = 1


class Misuse(Failure):
    """An option, a URL or a module is wrong."""

    exit_code = 2


class Away(Failure):
    """The database is not available."""

    exit_code = 3


class Unfit(Failure):
    """The database's schema is missing or does not fit."""

    exit_code = 4


_KINDS = {"invalid": Misuse, "unavailable": Away, "unsupported": Away, "schema": Unfit}
_HINTS = {"schema.missing": " Run perdure migrate.", "schema.outdated": " Run perdure migrate."}


def words(error: PerdureError) -> str:
    """The error's message. Its advice names shell commands instead of Python methods."""
    from perdure.model.advice import Advice

    said = error.args[0] if error.args else None
    return said.shell if isinstance(said, Advice) else str(error)


def failure(error: PerdureError, hint: str = "") -> Failure:
    """The failure of a command that raised a PerdureError: the error's message, and its code to search for."""
    message = " ".join([words(error), *getattr(error, "__notes__", ())])
    if "perdure migrate" not in message:
        hint = hint or _HINTS.get(error.code, "")
    return _KINDS.get(error.category, Failure)(f"{message}{hint} [{error.code}]")
