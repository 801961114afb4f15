"""A database that can be taken away from an app."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

from tests.store.proxy import Proxy


class Outage:
    """By a lock on the file, or between app and server. ``url`` is the one to use."""

    def __init__(self, url: str) -> None:
        self._proxy = None if url.startswith("sqlite") else Proxy(url)
        self._file = url.removeprefix("sqlite:///")
        self.url = url if self._proxy is None else self._proxy.url

    @contextmanager
    def begin(self) -> Iterator[None]:
        if self._proxy is not None:
            self._proxy.refuse()
            yield
            self._proxy.admit()
            return
        with closing(sqlite3.connect(self._file, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield

    def close(self) -> None:
        if self._proxy is not None:
            self._proxy.__exit__(None, None, None)
