"""The isolation level of the transaction around an operation. A caller's transaction may differ from ours."""

from __future__ import annotations

from perdure.errors import UnsupportedIsolation
from perdure.ops.op import Query, Rows

SHOW_ISOLATION = Query("show_isolation", {}, only="server")
"""Not needed on an embedded database: its only writer sees everything that is committed."""


def require_read_committed(rows: Rows) -> None:
    """Refuse a transaction that would not see keys committed after it began."""
    if rows and rows[0][0] not in ("read committed", "read uncommitted"):
        raise UnsupportedIsolation
