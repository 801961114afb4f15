"""Open connections to PostgreSQL, and refuse servers and libpq versions that are too old."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import psycopg
from psycopg.conninfo import make_conninfo

from perdure.errors import UnsupportedDatabase
from perdure.store.postgres.url import parse_url, refuse_wrong_options

OLDEST_SERVER: Final = 14

# A pooler must accept these options, so they contain no server settings. The URL may override them.
_DEFAULTS: Mapping[str, str | int] = {
    "connect_timeout": 5,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    "fallback_application_name": "perdure",
}


def connect(url: str) -> psycopg.Connection[Any]:
    """Open a connection in autocommit mode. psycopg prepares no statements on it."""
    asked = parse_url(url)
    try:
        connection = _Connection.connect(_conninfo(asked), autocommit=True, prepare_threshold=None)
    except psycopg.Error as error:
        failed = error
    else:
        return _not_old(connection)
    refuse_wrong_options(asked)  # libpq reports wrong options as if the server were away
    raise failed


async def connect_async(url: str) -> psycopg.AsyncConnection[Any]:
    """Open an async connection for a caller. The connection begins transactions by itself."""
    asked = parse_url(url)
    try:
        return await psycopg.AsyncConnection.connect(_conninfo(asked), prepare_threshold=None)
    except psycopg.Error as error:
        failed = error
    refuse_wrong_options(asked)
    raise failed


def _conninfo(asked: Mapping[str, Any]) -> str:
    # The URL cannot override the encoding: our texts are Unicode.
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
        """Do not warn about an open connection, as psycopg would: ours may stay open until the program ends.

        psycopg then closes the connection, except in a forked child, where it belongs to the parent.
        """
