"""The settings of an app's database."""

from __future__ import annotations

import logging
import os
import re
from typing import Literal, NamedTuple, Self

from perdure.errors import InvalidConfig
from perdure.request.options import text
from perdure.store.statements import DEFAULT_SCHEMA
from perdure.store.store import Store, open_store, without_driver

DEFAULT_FILE = "perdure.db"
"""The database of ``App()`` if the environment names no database: a file in the working directory."""

_log = logging.getLogger("perdure")


class DatabaseSettings(NamedTuple):
    """The arguments of ``App(...)`` for the database, and how long calls retry.

    A missing URL is read from the environment when the database is opened.
    """

    url: str | None = None
    schema: str = DEFAULT_SCHEMA
    listen_url: str | None = None
    synchronous: Literal["full", "normal"] = "full"
    prepare: bool | None = None
    patience: float | None = 30.0
    """Seconds for which a call retries while the database is busy. The command line retries for a shorter time."""
    patience_away: float | None = 5.0
    """Seconds for which a call retries while the database cannot be reached.

    The time is short, because many enqueues are part of a web request. Workers retry for longer.
    """

    @classmethod
    def checked(
        cls,
        url: str | None,
        schema: str,
        listen_url: str | None,
        synchronous: Literal["full", "normal"],
        prepare: bool | None,
    ) -> Self:
        if url == "":
            raise InvalidConfig("The database's URL is empty; leave it out to use the environment's.")
        for name, one in (("url", url), ("listen_url", listen_url)):
            if not isinstance(one, str | None):
                raise InvalidConfig(f"{name} must be a string, such as sqlite:///jobs.db.")
        if synchronous not in ("full", "normal"):
            raise InvalidConfig('synchronous must be "full" or "normal".')
        if not isinstance(prepare, bool | None):
            raise InvalidConfig("prepare must be True, False or None.")
        return cls(url, text("schema", schema, 63), listen_url, synchronous, prepare)

    def open(self) -> Store:
        """The store. It connects at its first use."""
        if self.url is None and self._from_environment is None and os.environ.get("DATABASE_URL"):
            _log.warning(
                "$DATABASE_URL is ignored: it names neither an SQLite nor a PostgreSQL database. Jobs are kept "
                "in the file %s. Set $PERDURE_URL, or give App a URL, to choose another database.",
                os.path.abspath(DEFAULT_FILE),
            )
        return open_store(
            self.found_url,
            schema=self.schema,
            synchronous=self.synchronous,
            prepare=self.prepare,
            patience=self.patience,
            patience_away=self.patience_away,
            listen_url=None if self.listen_url is None else without_driver(self.listen_url),
        )

    @property
    def found_url(self) -> str:
        """The given URL, else $PERDURE_URL, else $DATABASE_URL if perdure supports it, else the default file."""
        return without_driver(self.url or self._from_environment or f"sqlite:///{DEFAULT_FILE}")

    @property
    def _from_environment(self) -> str | None:
        """The URL from the environment, even if it is malformed: using the default file would hide the mistake."""
        if url := os.environ.get("PERDURE_URL"):
            return url
        url = os.environ.get("DATABASE_URL", "")
        return url if re.match(r"(postgresql|postgres|sqlite)[+:]", url) else None
