"""Where ``perdure bench`` works: tables of its own, beside the user's and on the same disk, for a while."""

from __future__ import annotations

import os
import secrets
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import click

from perdure.app import App, _url_from_environment
from perdure.cli.failures import Failure
from perdure.cli.target import PATIENCE
from perdure.errors import InvalidConfig, PerdureError
from perdure.store.store import Store, open_store

ENDS = ("SIGTERM", "SIGHUP")
"""What else than Ctrl-C ends a program that should clear away first, where the system has it."""


class Settings(NamedTuple):
    """Those of the user's app, on the throw-away tables: all that another process needs to open them."""

    url: str
    schema: str
    listen_url: str | None
    synchronous: Literal["full", "normal"]
    prepare: bool | None

    def app(self) -> App:
        app = App(
            self.url,
            schema=self.schema,
            listen_url=self.listen_url,
            synchronous=self.synchronous,
            prepare=self.prepare,
        )
        app._patience = PATIENCE
        return app


class Place(NamedTuple):
    """The throw-away tables."""

    settings: Settings
    app: App
    bare: Store
    """Where bare SQL is run: the same schema, or one more file. One connection writes to it, and so may checkpoint."""
    address: str
    """Of the user's database."""


@contextmanager
def throw_away(theirs: App) -> Iterator[Place]:
    """Make the tables; however the block ends, nothing of them is left."""
    name = f"perdure_bench_{secrets.token_hex(4)}"
    url = theirs._url or _url_from_environment()
    dialect, address = theirs.store.dialect, theirs.store.address
    options = (theirs.listen_url, theirs._synchronous, theirs._prepare)
    with _signals_raise():
        if dialect == "postgres":
            with _schema(Settings(url, name, *options)) as app:
                yield Place(Settings(url, name, *options), app, app.store, address)
        else:
            file = _beside(url.removeprefix("sqlite:///"), name)
            settings = Settings(f"sqlite:///{file}", name, *options)
            with _files(settings, file) as app, closing(_bare_file(settings)) as bare:
                yield Place(settings, app, bare, address)


@contextmanager
def _schema(settings: Settings) -> Iterator[App]:
    with settings.app() as app:
        made = True
        try:
            try:
                app.migrate()
            except PerdureError as error:
                made = False  # all of it, or nothing
                if error.code == "store.forbidden":
                    raise Failure(_FORBIDDEN) from None
                raise
            yield app
        finally:
            if made:
                _drop(app, settings.schema)


_FORBIDDEN = (
    "This role may not create a schema, and bench works in one of its own: GRANT CREATE ON DATABASE to it, or name "
    "another database with --url. [store.forbidden]"
)


def _drop(app: App, schema: str) -> None:
    drop = f'DROP SCHEMA IF EXISTS "{schema}" CASCADE'
    with _undisturbed():
        try:
            connection: Any = app.store.connect()
            with closing(connection):
                connection.autocommit = True
                connection.execute(drop.encode())
        except Exception:
            click.echo(f"The database could not be tidied up; please do: {drop};", err=True)
            raise


@contextmanager
def _files(settings: Settings, file: Path) -> Iterator[App]:
    try:
        with settings.app() as app:
            app.migrate()
            yield app
    finally:
        with _undisturbed():
            for path in file.parent.iterdir():
                if path.name.startswith(file.name):
                    path.unlink(missing_ok=True)


def _bare_file(settings: Settings) -> Store:
    return open_store(f"{settings.url}-bare", synchronous=settings.synchronous)


def _beside(path: str, name: str) -> Path:
    if path == ":memory:":
        raise InvalidConfig("A database in memory ends with its process: name a file, or PostgreSQL.")
    file = Path(os.path.realpath(path))
    if not file.parent.is_dir():
        raise InvalidConfig("The directory of the SQLite file does not exist.")
    if file.is_dir():
        raise InvalidConfig("The path of the SQLite file is a directory.")
    return file.with_name(f"{file.name}.{name}")


@contextmanager
def _signals_raise() -> Iterator[None]:
    """All of them as Ctrl-C, which also an event loop knows how to end with."""
    told: list[int] = []

    def interrupt(number: int, _frame: object) -> None:
        told.append(number)
        signal.raise_signal(signal.SIGINT)

    numbers = [signal.Signals[name] for name in ENDS if hasattr(signal, name)]
    before = {number: signal.signal(number, interrupt) for number in numbers}
    # A shell has those it starts in the background ignore it.
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(128 + (told[0] if told else signal.SIGINT))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """To clear away takes moments; whoever is impatient should not have to do it by hand."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
