"""The temporary tables of ``perdure bench``, beside the user's tables and on the same disk."""

from __future__ import annotations

import os
import secrets
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from perdure.app import App
from perdure.cli.failures import Failure
from perdure.cli.output import say
from perdure.cli.target import PATIENCE
from perdure.client.database import DatabaseSettings
from perdure.errors import InvalidConfig, PerdureError, SchemaError, StoreAway, StoreBusy
from perdure.store.statements import Dialect
from perdure.store.store import Store, open_store

ENDS = ("SIGTERM", "SIGHUP")
"""The signals, besides Ctrl-C, after which bench deletes its tables before it ends. Some systems lack them."""
TRIES = 5
"""The most attempts to drop the schema."""


class Place(NamedTuple):
    """The temporary tables."""

    settings: DatabaseSettings
    """The settings of the user's app, but with the URL and schema of the temporary tables.

    Another process opens the tables with these settings.
    """
    app: App
    bare: Store
    """The store for bare SQL: the same PostgreSQL schema, or another SQLite file.

    No other connection writes to that file, so SQLite's automatic checkpoints are safe.
    """
    address: str
    """The address of the user's database."""


def app_on(settings: DatabaseSettings) -> App:
    app = App()
    app.use_database(**settings._asdict())
    return app


@contextmanager
def throw_away(theirs: App) -> Iterator[Place]:
    """Create the tables, and delete them when the block ends, even if it raises."""
    name = f"perdure_bench_{secrets.token_hex(4)}"
    url = theirs.database.found_url
    dialect, address = theirs.store.dialect, theirs.store.address
    settings = theirs.database._replace(url=url, schema=name, patience=PATIENCE)
    with _signals_raise():
        if dialect == "postgres":
            with _schema(settings) as app:
                yield Place(settings, app, app.store, address)
        else:
            path = url.removeprefix("sqlite:///")
            file = _beside(path, name)
            if not os.path.exists(path):
                say(f"There is no file {path}: bench measures the disk of its directory.", err=True)
            # Check only that the file is a database. The state of its tables does not matter.
            with suppress(SchemaError, StoreBusy):
                theirs.check_schema()
            settings = settings._replace(url=f"sqlite:///{file}")
            with _files(settings, file) as app, closing(_bare_file(settings)) as bare:
                yield Place(settings, app, bare, address)


@contextmanager
def _schema(settings: DatabaseSettings) -> Iterator[App]:
    with app_on(settings) as app:
        try:
            app.migrate()
        except PerdureError as error:
            if error.code == "store.forbidden":
                raise Failure(_FORBIDDEN) from None
            if not isinstance(error, StoreAway):
                # Some migrations may have been applied, so drop the schema. Report the error of the migration, not an
                # error of the drop.
                with suppress(Exception):
                    _drop(app, settings.schema)
            raise
        except BaseException:
            _tidy_up(app, settings.schema)
            raise
        try:
            yield app
        finally:
            _tidy_up(app, settings.schema)


_FORBIDDEN = (
    "This role may not create a schema, and bench needs its own: GRANT CREATE ON DATABASE to the role, or give "
    "another database with --url. [store.forbidden]"
)


# Like a migration, these statements override read-only mode and timeouts that the role or the URL has set.
_DROP = (
    "BEGIN READ WRITE",
    "SET LOCAL statement_timeout = '5min'",
    "SET LOCAL lock_timeout = '10s'",
    'DROP SCHEMA IF EXISTS "{schema}" CASCADE',
    "COMMIT",
)


def _tidy_up(app: App, schema: str) -> None:
    try:
        _drop(app, schema)
    except Exception:
        by_hand = f'DROP SCHEMA IF EXISTS "{schema}" CASCADE;'
        say(f"The temporary schema could not be deleted; please run: {by_hand}", err=True)
        raise


def _drop(app: App, schema: str) -> None:
    for _ in range(TRIES - 1):
        # A statement timeout of a few milliseconds may cancel even BEGIN, before SET LOCAL raises the timeout.
        with suppress(StoreBusy):
            _drop_once(app, schema)
            return
    _drop_once(app, schema)


def _drop_once(app: App, schema: str) -> None:
    with _undisturbed(), drivers_errors("postgres"):
        connection: Any = app.store.connect()
        with closing(connection):
            connection.autocommit = True
            for statement in _DROP:
                connection.execute(statement.format(schema=schema).encode())


@contextmanager
def drivers_errors(dialect: Dialect) -> Iterator[None]:
    """Raise a driver's error as a PerdureError, whose message is safe to show."""
    try:
        yield
    except Exception as error:
        if dialect == "sqlite":
            from perdure.store.sqlite.errors import translate
        else:
            from perdure.store.postgres.errors import translate
        raise translate(error) from None


@contextmanager
def _files(settings: DatabaseSettings, file: Path) -> Iterator[App]:
    try:
        with app_on(settings) as app:
            app.migrate()
            yield app
    finally:
        with _undisturbed():
            for path in file.parent.iterdir():
                if path.name.startswith(file.name):
                    path.unlink(missing_ok=True)


def _bare_file(settings: DatabaseSettings) -> Store:
    return open_store(f"{settings.url}-bare", synchronous=settings.synchronous)


def _beside(path: str, name: str) -> Path:
    if path == ":memory:":
        raise InvalidConfig(
            "bench cannot use a database in memory: give the URL of a file, or of PostgreSQL."
        )
    file = Path(os.path.realpath(path))
    if not file.parent.is_dir():
        raise InvalidConfig("The directory of the SQLite file does not exist.")
    if file.is_dir():
        raise InvalidConfig("The path of the SQLite file is a directory.")
    return file.with_name(f"{file.name}.{name}")


@contextmanager
def _signals_raise() -> Iterator[None]:
    """Treat the signals in ENDS like Ctrl-C: ``asyncio.run`` handles only Ctrl-C, and then cancels its main task."""
    told: list[int] = []

    def interrupt(number: int, _frame: object) -> None:
        told.append(number)
        signal.raise_signal(signal.SIGINT)

    numbers = [signal.Signals[name] for name in ENDS if hasattr(signal, name)]
    before = {number: signal.signal(number, interrupt) for number in numbers}
    # A shell starts background processes with SIGINT ignored.
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
    """Ignore Ctrl-C while the tables are deleted, so that none are left for the user to delete.

    Deleting them takes only moments.
    """
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
