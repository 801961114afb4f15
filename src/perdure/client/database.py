"""Where an app's database is, and how it is opened."""

from __future__ import annotations

import os
import re
from typing import Literal, NamedTuple, Self

from perdure.errors import InvalidConfig
from perdure.request.options import text
from perdure.store.statements import DEFAULT_SCHEMA
from perdure.store.store import Store, open_store


class DatabaseSettings(NamedTuple):
    """What ``App(...)`` was given. Without a URL the environment decides, when the database is opened."""

    url: str | None = None
    schema: str = DEFAULT_SCHEMA
    listen_url: str | None = None
    synchronous: Literal["full", "normal"] = "full"
    prepare: bool | None = None
    patience: float | None = 30.0
    """Seconds for which a call goes on trying while the database is busy; the command line has less."""
    patience_away: float | None = 5.0
    """The same while it is away: an enqueue is often part of a web request. A worker has more."""

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
            raise InvalidConfig("The database's URL is empty; leave it out for the one of the environment.")
        for name, one in (("url", url), ("listen_url", listen_url)):
            if not isinstance(one, str | None):
                raise InvalidConfig(f"{name} is a text, such as sqlite:///jobs.db.")
        if synchronous not in ("full", "normal"):
            raise InvalidConfig('synchronous is "full" or "normal".')
        if not isinstance(prepare, bool | None):
            raise InvalidConfig("prepare is True, False or None.")
        return cls(url, text("schema", schema, 63), listen_url, synchronous, prepare)

    def open(self) -> Store:
        """The store. It connects at its first use."""
        return open_store(
            self.found_url,
            schema=self.schema,
            synchronous=self.synchronous,
            prepare=self.prepare,
            patience=self.patience,
            patience_away=self.patience_away,
            listen_url=self.listen_url,
        )

    @property
    def found_url(self) -> str:
        """The URL given, $PERDURE_URL, $DATABASE_URL if it is one of ours, or a file in the working directory."""
        if url := self.url or os.environ.get("PERDURE_URL"):
            return url
        # SQLAlchemy names a driver behind the scheme.
        url = re.sub(r"^(postgresql|sqlite)\+\w+:", r"\1:", os.environ.get("DATABASE_URL", ""))
        ours = url.startswith(("postgresql://", "postgres://", "sqlite://"))
        return url if ours else "sqlite:///perdure.db"
