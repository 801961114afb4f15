"""How perdure opens a connection to PostgreSQL, and what it refuses to work with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from perdure.errors import InvalidConfig, UnsupportedDatabase

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
    # The encoding alone is not the URL's to choose: our texts are Unicode.
    settings: dict[str, Any] = {**_DEFAULTS, **wishes(url), "client_encoding": "utf8"}
    connection = _Connection.connect(make_conninfo(**settings), autocommit=True, prepare_threshold=None)
    try:
        _refuse_old(connection)
    except UnsupportedDatabase:
        connection.close()
        raise
    return connection


async def connect_async(url: str) -> psycopg.AsyncConnection[Any]:
    """A connection of a caller's own, with transactions."""
    return await psycopg.AsyncConnection.connect(
        make_conninfo(**{**_DEFAULTS, **wishes(url), "client_encoding": "utf8"}), prepare_threshold=None
    )


def servers(url: str) -> str:
    """Host and port of each server that a URL leads to; nothing else in it is fit to be shown."""
    asked = wishes(url)
    hosts = _list(asked.get("host") or asked.get("hostaddr") or os.environ.get("PGHOST") or "localhost")
    ports = _list(asked.get("port") or os.environ.get("PGPORT") or "5432")
    if len(ports) < len(hosts):
        ports *= len(hosts)
    return ",".join(f"{host or 'localhost'}:{port or 5432}" for host, port in zip(hosts, ports, strict=False))


def _list(asked: object) -> list[str]:
    return str(asked).split(",")


def wishes(url: str) -> dict[str, Any]:
    """What a URL asks for."""
    try:
        asked = conninfo_to_dict(url)
        for port in str(asked.get("port") or 0).split(","):
            int(port or 0)
    except (psycopg.ProgrammingError, ValueError):
        raise InvalidConfig("The PostgreSQL URL cannot be read.") from None
    return asked


def _refuse_old(connection: psycopg.Connection[Any]) -> None:
    version = connection.pgconn.server_version // 10_000
    if version < OLDEST_SERVER:
        raise UnsupportedDatabase(f"perdure needs PostgreSQL {OLDEST_SERVER} or newer; this is {version}.")
    if not psycopg.Pipeline.is_supported():
        raise UnsupportedDatabase("perdure needs libpq 14 or newer: pip install 'psycopg[binary]'.")


class _Connection(psycopg.Connection[Any]):
    def __del__(self, *_: object) -> None:
        """No warning: ours may end with the program. libpq's part closes itself, except in a forked child."""
