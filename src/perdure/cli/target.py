"""The app or the database of a command: ``--app``, ``--url`` and ``--schema``, given before or after the command."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import click

from perdure.cli.failures import Misuse
from perdure.cli.suggest import did_you_mean
from perdure.cli.typed import database

if TYPE_CHECKING:
    from perdure.app import App

F = TypeVar("F", bound=Callable[..., Any])

PATIENCE = 5.0
"""Seconds for which a command retries while the database is busy.

A worker retries longer, but a person waits for a command.
"""


class Target:
    """The app and the database of a command: named by options, or else by the environment."""

    def __init__(self) -> None:
        self.app: str | None = None
        self.url: str | None = None
        self.schema: str | None = None

    @contextmanager
    def app_with_tables(self) -> Iterator[App]:
        """An app on a database that has perdure's tables. Nothing is created, so a typo in a URL leaves no new file."""
        with self.app_for_database() as app:
            check_schema(app)
            yield app

    def app_for_database(self) -> App:
        """The named app, or an app without tasks on the database of ``--url`` or of the environment.

        ``--url`` takes precedence over a named app.
        """
        path = None if self.url is not None else self.path
        app = self._bare() if path is None else load_app(path)
        app.use_database(patience=PATIENCE)
        _be_quiet()
        return app

    def program(self) -> App:
        """The named app with its tasks, on the database of ``--url`` if given.

        If no app is named, the result is an app without tasks.
        """
        if self.path is None:
            return self.app_for_database()
        app = load_app(self.path)
        if self.url is not None:
            app.use_database(url=self.url)
        app.import_modules()
        return app

    @property
    def path(self) -> str | None:
        return self.app or os.environ.get("PERDURE_APP") or None

    def _bare(self) -> App:
        from perdure.app import App

        return App(self.url) if self.schema is None else App(self.url, schema=self.schema)


def where(function: F) -> F:
    """Add the options that name the app and the database."""
    for option in (
        click.option("--schema", help="The schema on PostgreSQL.  [default: perdure]", **_NOTED),
        click.option(
            "--url", help="The database, or env:NAME.  [$PERDURE_URL]", expose_value=False, callback=_note_url
        ),
        click.option("--app", metavar="MODULE:APP", help="Where your app is.  [$PERDURE_APP]", **_NOTED),
    ):
        function = option(function)
    return function


def check_schema(app: App) -> None:
    """Check the schema. If it is missing, the error names the database: it may not be the one that the user meant."""
    from perdure.errors import SchemaMissing

    try:
        app.check_schema()
    except SchemaMissing as error:
        said = f"{error} Looked at {app.views.address}."
        if app.database.url is None and not any(
            os.environ.get(name) for name in ("PERDURE_URL", "DATABASE_URL")
        ):
            said = (
                f"Which database? --app, --url and $PERDURE_URL are not set, and {app.views.address} has no tables "
                "of perdure; perdure migrate creates them there."
            )
        raise SchemaMissing(said) from None


pass_target = click.make_pass_decorator(Target, ensure=True)


def load_app(path: str) -> App:
    """Import the app ``module:name``, with the working directory on the path as in ``python -m``."""
    module_name, _, name = full_path(path).partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    module = _import(module_name)
    app: object = module
    for part in name.split("."):
        app = getattr(app, part, None)
    from perdure.app import App

    if isinstance(app, App):
        return app
    apps = [known for known, value in vars(module).items() if isinstance(value, App)]
    what = "is not a perdure App" if app is not None else "does not exist"
    raise Misuse(f"{name!r} in {module_name} {what}.{did_you_mean(name, apps)} [config.invalid]")


def full_path(path: str) -> str:
    """``module:name``; a missing name is ``app``."""
    module, _, name = path.partition(":")
    return f"{module}:{name or 'app'}"


def _import(name: str) -> Any:
    try:
        return import_module(name)
    except Exception as error:
        said = f"{type(error).__name__}: {error}".partition("\n")[0]
        if isinstance(error, ModuleNotFoundError) and error.name is not None and _is_part(error.name, name):
            said = f"there is no module {error.name!r} in this directory or this Python"
        raise Misuse(f"Cannot import {name!r}: {said}{_place(error)}. [config.invalid]") from None


def _is_part(missing: str, name: str) -> bool:
    return name == missing or name.startswith(f"{missing}.")


def _place(error: BaseException) -> str:
    """The file and line of the user's code that raised the error; empty if the user's code did not raise it."""
    trace = error.__traceback__
    place = ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file != __file__ and "importlib" not in file:
            place = f" ({os.path.relpath(file)}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return place


def _be_quiet() -> None:
    """Keep the store's log lines off stderr: the command's error message says the same."""
    import logging

    logging.getLogger("perdure").addHandler(logging.NullHandler())


def _note(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None and param.name is not None:
        setattr(ctx.ensure_object(Target), param.name, value)


def _note_url(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    _note(ctx, param, database(ctx, param, value))


_NOTED: dict[str, Any] = {"expose_value": False, "callback": _note}
