"""How perdure opens a connection to PostgreSQL, and what it refuses to work with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import psycopg
from psycopg.conninfo import make_conninfo

from perdure.errors import UnsupportedDatabase
from perdure.store.postgres.url import parse_url, refuse_wrong_options

OLDEST_SERVER: Final = 14

# Only what a pooler lets pass: no server options. The URL may say otherwise.
_DEFAULTS: Mapping[str, str | int] = {
    "connect_timeout": 5,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    "fallback_application_name": "perdure",
}


def connect(url: str) -> psycopg.Connection[Any]:
    """A connection that commits at once and has no state of its own."""
    asked = parse_url(url)
    try:
        connection = _Connection.connect(_conninfo(asked), autocommit=True, prepare_threshold=None)
    except psycopg.Error as error:
        failed = error
    else:
        return _not_old(connection)
    refuse_wrong_options(asked)  # to libpq, they are a server that is away
    raise failed


async def connect_async(url: str) -> psycopg.AsyncConnection[Any]:
    """A connection of a caller's own, with transactions."""
    asked = parse_url(url)
    try:
        return await psycopg.AsyncConnection.connect(_conninfo(asked), prepare_threshold=None)
    except psycopg.Error as error:
        failed = error
    refuse_wrong_options(asked)
    raise failed


def _conninfo(asked: Mapping[str, Any]) -> str:
    # The encoding alone is not the URL's to choose: our texts are Unicode.
    return make_conninfo(**{**_DEFAULTS, **asked, "client_encoding": "utf8"})


def _not_old(connection: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    try:
        _refuse_old(connection)
    except UnsupportedDatabase:
        connection.close()
        raise
    return connection


def _refuse_old(connection: psycopg.Connection[Any]) -> None:
    version = connection.pgconn.server_version // 10_000
    if version < OLDEST_SERVER:
        raise UnsupportedDatabase(f"perdure needs PostgreSQL {OLDEST_SERVER} or newer; this is {version}.")
    if not psycopg.Pipeline.is_supported():
        raise UnsupportedDatabase("perdure needs libpq 14 or newer: pip install 'psycopg[binary]'.")


class _Connection(psycopg.Connection[Any]):
    def __del__(self, *_: object) -> None:
        """No warning: ours may end with the program. libpq's part closes itself, except in a forked child."""
