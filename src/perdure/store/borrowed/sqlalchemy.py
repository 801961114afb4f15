"""Find the driver's connection inside SQLAlchemy's connections and sessions, with any driver.

Statements run on the driver's connection. If they ran through the session, it would flush pending changes into our
savepoint. A refusal would then undo those changes, and the session would not know.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import exc

from perdure.errors import PerdureError, StoreAway, UnsupportedConnection
from perdure.store.borrowed import refusals
from perdure.store.borrowed.join import Wrapper


def _open_session(session: Any) -> Any:
    with _explained():
        return _inside(session.connection())


def _open_connection(connection: Any) -> Any:
    with _explained():
        return _inside(connection)


async def _open_async_session(session: Any) -> Any:
    with _explained():
        return await (await session.connection()).run_sync(_inside)


async def _open_async_connection(connection: Any) -> Any:
    with _explained():
        return await connection.run_sync(_inside)


def _inside(connection: Any) -> Any:
    if not connection.in_transaction():
        connection.begin()
    driver = connection.connection.driver_connection
    # With asyncpg, SQLAlchemy begins a transaction only at its own first statement.
    if hasattr(driver, "is_in_transaction") and not driver.is_in_transaction():
        connection.exec_driver_sql("SELECT 1")
    return driver


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except (exc.SQLAlchemyError, OSError) as error:
        raise _refusal(error) from None


def _refusal(error: Exception) -> PerdureError:
    match error:
        case exc.UnboundExecutionError():
            return UnsupportedConnection(
                "The session has no single database: pass one of its connections as conn=."
            )
        case exc.ResourceClosedError():
            return refusals.closed()
        case exc.DBAPIError() | OSError():
            return StoreAway()
        case exc.PendingRollbackError():
            return refusals.aborted()
    return UnsupportedConnection("The SQLAlchemy session or connection cannot begin a transaction.")


CONNECTION: Final = Wrapper("sync", _open_connection)
SESSION: Final = Wrapper("sync", _open_session)
ASYNC_CONNECTION: Final = Wrapper("async", _open_async_connection)
ASYNC_SESSION: Final = Wrapper("async", _open_async_session)
