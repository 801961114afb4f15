"""The isolation of the transaction around an operation: a caller's own may have another level than ours."""

from __future__ import annotations

from perdure.errors import UnsupportedIsolation
from perdure.ops.op import Query, Rows

SHOW_ISOLATION = Query("show_isolation", {}, only="server")
"""An embedded database has one writer at a time, which sees what is committed."""


def require_read_committed(rows: Rows) -> None:
    """Refuse a transaction that would not see a key that another one has committed since it began."""
    if rows and rows[0][0] not in ("read committed", "read uncommitted"):
        raise UnsupportedIsolation
