"""The store protocol, and how to open a store from a URL."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, ParamSpec, Protocol, TypeVar

from perdure.errors import InvalidConfig
from perdure.ops.op import Operation
from perdure.store.schema.files import Migration
from perdure.store.statements import DEFAULT_SCHEMA, Dialect

P = ParamSpec("P")
T = TypeVar("T")


class Facts(NamedTuple):
    """Numbers about a store in this process. A number is None if this kind of database does not have it."""

    connections: int
    """Connections that are open."""
    busy: int | None = None
    """Open connections that are in use."""
    most: int | None = None
    """How many connections may be open at most."""
    wal_bytes: int | None = None
    """The size of the write-ahead log."""


class Store(Protocol):
    """A database that performs operations, each in its own transaction."""

    @property
    def dialect(self) -> Dialect: ...

    @property
    def embedded(self) -> bool:
        """Whether the database runs in this process: no round trips, one writer at a time, this host's clock."""
        ...

    @property
    def detects_dead_workers(self) -> bool:
        """Whether ``absent`` can find dead workers. This requires that all workers run on one host."""
        ...

    @property
    def address(self) -> str:
        """The database's address for people to read, without user, password and options."""
        ...

    @property
    def patience(self) -> float | None:
        """How many seconds a call keeps trying while the database is away or busy; None means for ever."""
        ...

    def use_worker_patience(self) -> None:
        """From now on, keep trying for the full ``patience``, even while the database is away.

        Only workers call this, because no user waits for them.
        """
        ...

    def perform(self, operation: Operation[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    async def aperform(self, operation: Operation[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Perform an operation from any event loop, without blocking it."""
        ...

    @property
    def takes_another_cycle(self) -> bool:
        """Whether this event loop can send a second pipelined operation (a cycle) before the first is answered."""
        ...

    def perform_at_once(self, operation: Operation[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Perform an operation, but raise StoreBusy instead of waiting for a write lock on the whole database."""
        ...

    @property
    def migrations(self) -> Sequence[Migration]:
        """The migrations of this version, in order."""
        ...

    def migrate(self, *, to: int | None = None) -> list[int]:
        """Apply missing migrations, up to version ``to``; return the versions that this call finished."""
        ...

    def migration_sql(self, *, to: int | None = None) -> str:
        """The SQL that ``migrate`` would run, to read or to run by hand. Changes nothing."""
        ...

    def check_schema(self) -> None:
        """Raise a SchemaError if the schema is not usable. Changes nothing."""
        ...

    def subscribe(self, listener: Callable[[frozenset[str]], None]) -> Callable[[], None]:
        """Call ``listener`` with the topics of every commit of this process, in the thread that committed.

        Returns a function that ends the subscription.
        """
        ...

    def listen(self, listener: Callable[[frozenset[str]], None]) -> Callable[[], None]:
        """Like ``subscribe``, but also call ``listener`` for commits of other processes, as soon as they are noticed.

        ``listener`` may be called from any thread. A topic may arrive more than once, arrive as ``ANYTHING``, which
        stands for every topic, or be missed. So a listener must also poll. A forked child has no listeners.
        """
        ...

    @property
    def hears_others(self) -> bool:
        """Whether a listener is notified of other processes' commits now, as far as is known."""
        ...

    def lock_liveness(self, worker: str) -> Callable[[], None]:
        """Hold a lock that shows that this worker is alive, until this process ends; return a function that unlocks it.

        Does nothing if this store cannot detect dead workers.
        """
        ...

    def absent(self, workers: Iterable[str]) -> list[str]:
        """The workers among these that are certainly dead. Other workers may be dead, too.

        A dead worker is returned only once: concurrent callers do not get the same worker.
        """
        ...

    def facts(self) -> Facts:
        """Numbers about the store that need no query."""
        ...

    def connect(self) -> Any:
        """A driver connection inside a transaction, for the caller to use, commit and close."""
        ...

    async def aconnect(self) -> Any:
        """Like ``connect``, for async code. The connection is async if the driver has async connections."""
        ...

    def mark_self_locked(self) -> Callable[[], None]:
        """Note that this thread or task holds the write lock, with a connection from ``connect``.

        Its other writes would wait for that lock for ever, so they are refused until the returned function is called.
        """
        ...

    def close(self) -> None:
        """Close all connections and end all threads. Later calls raise StoreClosed."""
        ...

    # The following methods are for operations on a caller's connection.

    @property
    def statements(self) -> Mapping[str, str]:
        """Every statement by name, in the form for the driver."""
        ...

    def now(self) -> int | None:
        """The value of ``:now``: microseconds since the epoch, or None for the database's clock."""
        ...

    def announce(self, topics: frozenset[str]) -> None:
        """Notify the listeners of this process."""
        ...


def open_store(
    url: str,
    *,
    schema: str = DEFAULT_SCHEMA,
    synchronous: Literal["full", "normal"] = "full",
    prepare: bool | None = None,
    patience: float | None = 30.0,
    patience_away: float | None = None,
    clock: Callable[[], int] | None = None,
    listen_url: str | None = None,
) -> Store:
    """Open the store of a URL. The store connects at its first use."""
    if not isinstance(url, str):
        raise InvalidConfig("The database URL must be a text, such as sqlite:///jobs.db.")
    scheme, separator, rest = url.partition("://")
    if separator and scheme == "sqlite" and rest.startswith("/"):
        return _open_sqlite(rest[1:], synchronous=synchronous, patience=patience, clock=clock)
    if separator and scheme in ("postgresql", "postgres"):
        return _open_postgres(
            url,
            schema=schema,
            prepare=prepare,
            patience=patience,
            patience_away=patience_away,
            clock=clock,
            listen_url=listen_url,
        )
    raise InvalidConfig(
        "The database URL must begin with sqlite:/// (then a path or :memory:), postgresql:// or postgres://."
    )


def without_driver(url: str) -> str:
    """The URL without the driver that SQLAlchemy names after the scheme, as in ``postgresql+psycopg://``."""
    return re.sub(r"^(postgresql|postgres|sqlite)\+\w+(?=:)", r"\1", url)


def _open_sqlite(
    path: str,
    *,
    synchronous: Literal["full", "normal"],
    patience: float | None,
    clock: Callable[[], int] | None,
) -> Store:
    from perdure.store.sqlite.store import SqliteStore

    if "?" in path:
        raise InvalidConfig("The URL of an SQLite database cannot have options after a question mark.")
    return SqliteStore(path, synchronous=synchronous, patience=patience, clock=clock)


def _open_postgres(
    url: str,
    *,
    schema: str,
    prepare: bool | None,
    patience: float | None,
    patience_away: float | None,
    clock: Callable[[], int] | None,
    listen_url: str | None,
) -> Store:
    try:
        from perdure.store.postgres.store import PostgresStore
    except ImportError:
        raise InvalidConfig("PostgreSQL needs a driver: pip install 'perdure[postgres]'.") from None
    return PostgresStore(
        url,
        schema=schema,
        prepare=prepare,
        patience=patience,
        patience_away=patience_away,
        clock=clock,
        listen_url=listen_url,
    )
