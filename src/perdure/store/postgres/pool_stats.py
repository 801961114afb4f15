"""Numbers of a PostgreSQL store that need no query."""

from __future__ import annotations

from perdure.store.postgres.pool import Pool, limits
from perdure.store.store import Facts


def facts(pool: Pool) -> Facts:
    """Count this process's connections. ``wal_bytes`` stays None: not every role may ask for the WAL's size."""
    lent, idle = pool.use()
    return Facts(connections=lent + idle, busy=lent, most=sum(limits(pool.size).values()))
