"""Bare SQL, to compare with perdure: the simplest queue in handwritten SQL, on one connection.

The queue is a table with an index on ready jobs, without priorities, limits, leases, retries or history. perdure is
slower by the cost of these features.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from perdure.cli.bench.tables import Place, drivers_errors
from perdure.store.statements import Dialect, name_tables

BULK, BATCH = 1000, 100
PAYLOAD = '{"to":"user@example.com","subject":"Welcome aboard","number":1}'

_TABLE: Mapping[Dialect, str] = {
    "sqlite": "CREATE TABLE perdure.bare (id integer PRIMARY KEY, state text, payload text) STRICT",
    "postgres": "CREATE TABLE perdure.bare"
    " (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, state text, payload json)",
}
_INDEX = "CREATE INDEX bare_ready ON perdure.bare (id) WHERE state = 'ready'"
_CLAIM = "UPDATE perdure.bare SET state = 'running' WHERE id IN ({ready}) RETURNING id, payload"
_READY = f"SELECT id FROM perdure.bare WHERE state = 'ready' ORDER BY id LIMIT {BATCH}"

_PLANS = {
    "plan_cache_mode": "force_generic_plan",
    **dict.fromkeys(("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin"), "off"),
}


class Bare(Protocol):
    def insert(self) -> int:
        """Insert one job and commit; return the number of jobs."""
        ...

    def insert_many(self) -> int:
        """Insert many jobs with one commit."""
        ...

    def cycle(self) -> int:
        """Finish the jobs that were claimed last and claim the next jobs, with one commit."""
        ...

    def close(self) -> None: ...


def open_bare(place: Place) -> Bare:
    with drivers_errors(place.bare.dialect):
        return BarePostgres(place) if place.bare.dialect == "postgres" else BareSqlite(place)


class BareSqlite:
    def __init__(self, place: Place) -> None:
        self._connection: Any = place.bare.connect()
        self._connection.execute("ROLLBACK")
        # perdure's connections have no automatic checkpoints. Here SQLite's default is safe: no other connection
        # writes to this file.
        self._connection.execute("PRAGMA wal_autocheckpoint = 1000")
        for definition in (_TABLE["sqlite"], _INDEX):
            self._connection.execute(_named(definition))
        self._insert = _named("INSERT INTO perdure.bare (state, payload) VALUES ('ready', ?)")
        self._claim = _named(_CLAIM.format(ready=_READY))
        self._finish = _named("UPDATE perdure.bare SET state = 'succeeded' WHERE id = ?")
        self._taken: list[tuple[int]] = []

    def insert(self) -> int:
        self._connection.execute(self._insert, [PAYLOAD])
        return 1

    def insert_many(self) -> int:
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(self._insert, [[PAYLOAD]] * BULK)
        self._connection.execute("COMMIT")
        return BULK

    def cycle(self) -> int:
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(self._finish, self._taken)
        self._taken = [(id,) for id, _ in self._connection.execute(self._claim).fetchall()]
        self._connection.execute("COMMIT")
        return len(self._taken)

    def close(self) -> None:
        self._connection.close()


class BarePostgres:
    def __init__(self, place: Place) -> None:
        schema = place.settings.schema
        self._connection: Any = place.bare.connect()
        self._connection.autocommit = True
        for definition in (_TABLE["postgres"], _INDEX):
            self._execute(_named(definition, schema))
        self._plan_once(place.settings.prepare)
        columns = "perdure.bare (state, payload)"
        self._insert = _named(f"INSERT INTO {columns} VALUES ('ready', %s::text::json)", schema)
        self._copy = _named(f"COPY {columns} FROM STDIN", schema)
        self._cycle = _named(
            "WITH done AS (UPDATE perdure.bare SET state = 'succeeded' WHERE id = ANY(%s::bigint[])) "
            + _CLAIM.format(ready=f"SELECT pg_catalog.unnest(ARRAY({_READY} FOR UPDATE SKIP LOCKED))"),
            schema,
        )
        self._taken: list[int] = []

    def insert(self) -> int:
        self._execute(self._insert, [PAYLOAD])
        return 1

    def insert_many(self) -> int:
        with self._connection.cursor() as cursor, cursor.copy(self._copy.encode()) as copy:
            copy.write(f"ready\t{PAYLOAD}\n" * BULK)
        return BULK

    def cycle(self) -> int:
        rows = self._execute(self._cycle, [self._taken]).fetchall()
        self._taken = [id for id, _ in rows]
        return len(self._taken)

    def _plan_once(self, prepare: bool | None) -> None:
        """Make the planner use the indexes, whatever the statistics of a new table say, and prepare each statement.

        Behind a pooler, planner settings are left out, and statements are prepared only if ``prepare`` is True: see
        decision 0003.
        """
        ((backend,),) = self._execute("SELECT pg_catalog.pg_backend_pid()").fetchall()
        own = backend == self._connection.info.backend_pid
        if own if prepare is None else prepare:
            self._connection.prepare_threshold = 0
        if own:
            for setting, value in _PLANS.items():
                self._execute("SELECT pg_catalog.set_config(%s, %s, false)", [setting, value])

    def close(self) -> None:
        self._connection.close()

    def _execute(self, text: str, params: list[Any] | None = None) -> Any:
        return self._connection.execute(text.encode(), params)


def _named(text: str, schema: str | None = None) -> str:
    return name_tables(text, "sqlite") if schema is None else name_tables(text, "postgres", schema)
