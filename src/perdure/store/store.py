"""What every store can do, and how one is opened from a URL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, ParamSpec, Protocol, TypeVar

from perdure.errors import InvalidConfig
from perdure.ops.op import Operation
from perdure.store.schema.files import Migration
from perdure.store.statements import DEFAULT_SCHEMA, Dialect

P = ParamSpec("P")
T = TypeVar("T")


class Facts(NamedTuple):
    """What a store knows of itself in this process; None is what its kind does not know."""

    connections: int
    """Open now."""
    busy: int | None = None
    """Of those, at work now."""
    most: int | None = None
    """As many may be open."""
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
    def address(self) -> str:
        """Where the database is, for people to read: without user, password and options."""
        ...

    @property
    def patience(self) -> float | None:
        """For how many seconds a call goes on trying while the database is away or busy; None is for ever."""
        ...

    def use_worker_patience(self) -> None:
        """Wait for a database that is away as long as for one that is busy: a worker is here, nobody at a screen."""
        ...

    def perform(self, operation: Operation[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    async def aperform(self, operation: Operation[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """The same from any event loop, which is not held up."""
        ...

    @property
    def takes_another_turn(self) -> bool:
        """Whether a turn can be sent behind the one of this event loop's that is under way."""
        ...

    def perform_at_once(self, operation: Operation[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """The same, but raise StoreBusy rather than wait for another's write lock on the whole database."""
        ...

    @property
    def migrations(self) -> Sequence[Migration]:
        """Those of this version, in order."""
        ...

    def migrate(self, *, to: int | None = None) -> list[int]:
        """Apply the migrations that are missing, up to a version; return the versions finished here."""
        ...

    def migration_sql(self, *, to: int | None = None) -> str:
        """What ``migrate`` would do, to be read, or run by hand. Changes nothing."""
        ...

    def check_schema(self) -> None:
        """Raise SchemaMissing, Outdated, Newer, Changed, Dirty or Foreign. Changes nothing."""
        ...

    def subscribe(self, listener: Callable[[frozenset[str]], None]) -> Callable[[], None]:
        """Call ``listener`` with the topics of every commit of this process, from the thread that committed.

        Returns what ends it.
        """
        ...

    def listen(self, listener: Callable[[frozenset[str]], None]) -> Callable[[], None]:
        """The same, and tell of other processes' commits as soon as they are heard, from any thread.

        A topic may be told more than once, or be ``ANYTHING``, or be missed: whoever listens also looks now and
        then. In a forked child nobody listens yet.
        """
        ...

    def lock_liveness(self, worker: str) -> Callable[[], None]:
        """Keep a sign of life that falls with this process; returns what gives it up."""
        ...

    def absent(self, workers: Iterable[str]) -> list[str]:
        """Those of these workers that are certainly dead, each told to one who asks. Others may be dead too."""
        ...

    def facts(self) -> Facts:
        """What can be told without asking the database."""
        ...

    def connect(self) -> Any:
        """A connection of the driver's for the caller to use, commit and close, inside a transaction."""
        ...

    async def aconnect(self) -> Any:
        """The same for async code, as far as the driver has async connections."""
        ...

    def mark_self_locked(self) -> Callable[[], None]:
        """Such a connection is in use here, in this thread or task: refuse writes that would wait for it.

        Returns what ends that.
        """
        ...

    def close(self) -> None:
        """Give back what the store holds; later calls raise StoreClosed."""
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
        """Tell the listeners in this process."""
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
