"""Join a caller's transaction on PostgreSQL, with any driver."""

from __future__ import annotations

from typing import Final

from perdure.errors import PerdureError, StoreBusy
from perdure.ops.op import Access
from perdure.store.borrowed import refusals
from perdure.store.borrowed.join import (
    Batch,
    Batches,
    BoundStatement,
    DialectJoin,
    Opening,
    State,
    Uninterruptible,
)
from perdure.store.postgres.errors import Cure, understand
from perdure.store.postgres.store import PostgresStore
from perdure.store.postgres.transaction import NOTIFY, notice
from perdure.store.store import Store

_BEGIN = BoundStatement("BEGIN", {})
_ROLLBACK = BoundStatement("ROLLBACK", {})
_PLACE = """
SELECT pg_catalog.current_database(), pg_catalog.current_setting('client_encoding') = CAST(%(encoding)s AS text)
"""


def _open_transaction(store: Store, access: Access, state: State) -> Batches[Opening]:
    assert isinstance(store, PostgresStore)
    database, readable = state.database, True
    if database is None:
        [[(database, readable)]] = yield Uninterruptible([BoundStatement(_PLACE, {"encoding": "UTF8"})])
    # Compare the names of the databases, not the addresses: a server has other addresses through a pooler or from
    # another network.
    if store.database is not None and database != store.database:
        raise refusals.elsewhere()
    if not readable:
        raise refusals.wrong_encoding()
    return Opening([_BEGIN], [_ROLLBACK]) if state.begin else Opening()


def _notice(store: Store, topics: frozenset[str]) -> Batch:
    """The NOTIFY statement. The server delivers the notification when the caller commits."""
    assert isinstance(store, PostgresStore)
    params = notice(store.channel, topics)
    return [BoundStatement(NOTIFY, params)] if params else []


POSTGRES: Final = DialectJoin("postgres", _open_transaction, _notice)


def explain(error: BaseException, sqlstate: str | None, *, lost: bool) -> PerdureError:
    """Convert a driver's error inside a caller's transaction to our error."""
    if sqlstate == "25P02":
        return refusals.aborted()
    diagnosis = understand(sqlstate or "", error, lost=lost)
    if diagnosis.cure is Cure.AGAIN:
        return StoreBusy("Your transaction conflicted with others: run it again.", code="store.contended")
    return diagnosis.error
