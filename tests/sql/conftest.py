"""A server that runs only the counted statements."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.postgres import FAST, Server


@pytest.fixture
def lone_postgres_url() -> Iterator[str]:
    """The URL of an empty database, on a server nobody else uses.

    Beside others a statement touches more pages than its own: what was taken back keeps its room in a page while a
    transaction of any database is older, and when others make and drop many tables, the server forgets what ours are
    and looks them up again (7 pages became 34, 47 became 274).
    """
    with Server.start({**FAST, "autovacuum": "off"}) as server:
        yield server.url()
