"""What every store can do, and how one is opened from a URL."""

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
    """The store's own numbers in this process; None where its database has no such number."""

    connections: int
    """Open now."""
    busy: int | None = None
    """Of those, in use now."""
    most: int | None = None
    """How many may be open."""
    wal_bytes: int | None = None
    """The size of the log beside the file."""


class Store(Protocol):
    """A database that performs operations, each in a transaction of its own."""

    @property
    def dialect(self) -> Dialect: ...

    @property
    def embedded(self) -> bool:
        """Whether the database runs in this process: no round trips, one writer at a time, the clock of this host."""
        ...

    @property
    def detects_dead_workers(self) -> bool:
        """Whether ``absent`` may name any: it takes a database whose workers all run on one host."""
        ...

    @property
    def address(self) -> str:
        """Where the database is, for people to read: without user, password and options."""
        ...

    @property
    def patience(self) -> float | None:
        """How many seconds a call keeps trying while the database is away or busy; None is for ever."""
        ...

    def use_worker_patience(self) -> None:
        """Wait for a database that is away as long as for a busy one: a worker has no user who waits."""
        ...

    def perform(self, operation: Operation[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    async def aperform(self, operation: Operation[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """The same from any event loop, without blocking it."""
        ...

    @property
    def takes_another_cycle(self) -> bool:
        """Whether this event loop can send a pipelined operation, a turn, behind the one in flight."""
        ...

    def perform_at_once(self, operation: Operation[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """The same, but raise StoreBusy instead of waiting for a write lock on the whole database."""
        ...

    @property
    def migrations(self) -> Sequence[Migration]:
        """The migrations of this version, in order."""
        ...

    def migrate(self, *, to: int | None = None) -> list[int]:
        """Apply the migrations that are missing, up to a version; return the versions finished here."""
        ...

    def migration_sql(self, *, to: int | None = None) -> str:
        """What ``migrate`` would do, as SQL to read or to run by hand. Changes nothing."""
        ...

    def check_schema(self) -> None:
        """Raise SchemaMissing, Outdated, Newer, Changed, Dirty or Foreign. Changes nothing."""
        ...

    def subscribe(self, listener: Callable[[frozenset[str]], None]) -> Callable[[], None]:
        """Call ``listener`` with the topics of every commit of this process, from the thread that committed.

        Returns a function that ends it.
        """
        ...

    def listen(self, listener: Callable[[frozenset[str]], None]) -> Callable[[], None]:
        """The same, and also with the commits of other processes, as soon as they are noticed, from any thread.

        A topic may come more than once, or as ``ANYTHING``, or be missed: a listener must also poll. A forked child
        has no listeners.
        """
        ...

    @property
    def hears_others(self) -> bool:
        """Whether a listener is notified of other processes' commits now, as far as is known."""
        ...

    def lock_liveness(self, worker: str) -> Callable[[], None]:
        """Lock a file for as long as this process lives; returns a function that unlocks it."""
        ...

    def absent(self, workers: Iterable[str]) -> list[str]:
        """Which of these workers are certainly dead; each is named to one caller only. Others may be dead too."""
        ...

    def facts(self) -> Facts:
        """Numbers that need no query."""
        ...

    def connect(self) -> Any:
        """A connection of the driver's for the caller to use, commit and close, inside a transaction."""
        ...

    async def aconnect(self) -> Any:
        """The same for async code, as far as the driver has async connections."""
        ...

    def mark_self_locked(self) -> Callable[[], None]:
        """This thread or task uses such a connection: refuse writes here that would wait for its lock.

        Returns a function that ends that.
        """
        ...

    def close(self) -> None:
        """Close all connections and threads; later calls raise StoreClosed."""
        ...

    # What an operation on the caller's own connection needs of the store.

    @property
    def statements(self) -> Mapping[str, str]:
        """Every statement by its name, as the driver takes it."""
        ...

    def now(self) -> int | None:
        """``now`` in a statement: microseconds since the epoch, or None for the database's own clock."""
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
    """The store behind a URL. It connects at its first use."""
    if not isinstance(url, str):
        raise InvalidConfig("A database's URL is a text, such as sqlite:///jobs.db.")
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
        "A database's URL begins with sqlite:/// (a path or :memory: follows), postgresql:// or postgres://."
    )


def without_driver(url: str) -> str:
    """The URL without the driver that SQLAlchemy names behind the scheme: ``postgresql+psycopg://``."""
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
        raise InvalidConfig("The URL of an SQLite database takes no options after a question mark.")
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
