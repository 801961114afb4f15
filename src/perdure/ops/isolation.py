"""Check the isolation level of an operation's transaction. A caller's transaction may have any level."""

from __future__ import annotations

from perdure.errors import UnsupportedIsolation
from perdure.ops.op import Query, Rows

SHOW_ISOLATION = Query("show_isolation", {}, only="server")
"""Asks for the isolation level. An embedded database needs no check: its only writer sees all committed rows."""


def require_read_committed(rows: Rows) -> None:
    """Refuse a transaction that would not see keys committed after it began."""
    if rows and rows[0][0] not in ("read committed", "read uncommitted"):
        raise UnsupportedIsolation
