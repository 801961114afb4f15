"""What a PostgreSQL store knows of itself without asking the server."""

from __future__ import annotations

from perdure.store.postgres.pool import Pool, limits
from perdure.store.store import Facts


def facts(pool: Pool) -> Facts:
    """Of this process's connections. The server's log is not for everybody to see."""
    lent, idle = pool.use()
    return Facts(connections=lent + idle, busy=lent, most=sum(limits(pool.size).values()))
